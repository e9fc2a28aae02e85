// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Commands: what programs and a device say to each other through the kernel, in passthrough transactions.
//!
//! A command is a structure that begins with its kind. Layouts are those of version 17.0 of the vendor's user-space
//! library (`QNncProtocol.h`, `QAicHostApiInfo.h`); all of it is little endian and unaligned here, so that it is the
//! same on any host. Only what is needed to load, run and unload networks, and to ask a device what it has, is here.
//!
//! The vendor's library leaves [eight more bytes](TAIL) behind each request than its structure has, and a device that
//! checks lengths may count on them, so [`request`] does the same.

use super::{Malformed, Version};
use zerocopy::little_endian::{I32, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

mod status;

pub use status::Status;

/// Kinds of commands.
pub mod kind {
    #![expect(missing_docs, reason = "the names are the vendor's, and say it")]
    pub const LOAD_CONSTANTS_REQUEST: u32 = 1;
    pub const LOAD_CONSTANTS_RESPONSE: u32 = 2;
    pub const LOAD_ELF_REQUEST: u32 = 3;
    pub const LOAD_ELF_RESPONSE: u32 = 4;
    pub const UNLOAD_CONSTANTS_REQUEST: u32 = 5;
    pub const UNLOAD_CONSTANTS_RESPONSE: u32 = 6;
    pub const UNLOAD_ELF_REQUEST: u32 = 7;
    pub const UNLOAD_ELF_RESPONSE: u32 = 8;
    pub const ACTIVATE_REQUEST: u32 = 9;
    pub const ACTIVATE_RESPONSE: u32 = 10;
    pub const DEACTIVATE_REQUEST: u32 = 11;
    pub const DEACTIVATE_RESPONSE: u32 = 12;
    pub const STATUS_REQUEST: u32 = 13;
    pub const STATUS_RESPONSE: u32 = 14;
    pub const LOAD_CONSTANTS_EX_REQUEST: u32 = 15;
    pub const LOAD_CONSTANTS_PAYLOAD_REQUEST: u32 = 16;
    pub const CREATE_GROUP_REQUEST: u32 = 28;
    pub const CREATE_GROUP_RESPONSE: u32 = 29;
    pub const RELEASE_GROUP_REQUEST: u32 = 30;
    pub const RELEASE_GROUP_RESPONSE: u32 = 31;
    pub const RESOURCE_INFO_REQUEST: u32 = 32;
    pub const RESOURCE_INFO_RESPONSE: u32 = 33;
    pub const PERFORMANCE_INFO_REQUEST: u32 = 34;
    pub const PERFORMANCE_INFO_RESPONSE: u32 = 35;
    pub const ACTIVATION_STATE_REQUEST: u32 = 36;
    pub const ACTIVATION_STATE_RESPONSE: u32 = 37;
}

/// How many bytes follow a request's structure.
pub const TAIL: usize = 8;

/// How many bytes a name has, its ending zero included.
pub const NAME: usize = 64;

/// A command with a structure of its own.
pub trait Command: FromBytes + IntoBytes + Immutable + KnownLayout {
    /// Its first word.
    const KIND: u32;
    /// Its name in messages.
    const NAME: &'static str;
}

macro_rules! commands {
    ($(
        $(#[$attribute:meta])*
        $name:ident = $kind:ident, $what:literal, $size:literal {
            $($(#[$about:meta])* $field:ident: $type:ty = $offset:literal,)*
        }
    )*) => {
        $(
            $(#[$attribute])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
            #[repr(C)]
            pub struct $name {
                /// Its first word: [`Command::KIND`], by default.
                pub kind: U32,
                $($(#[$about])* pub $field: $type,)*
            }

            impl Default for $name {
                fn default() -> Self {
                    Self { kind: U32::new(kind::$kind), ..zerocopy::FromZeros::new_zeroed() }
                }
            }

            impl Command for $name {
                const KIND: u32 = kind::$kind;
                const NAME: &'static str = $what;
            }

            const _: () = {
                assert!(size_of::<$name>() == $size && $size % 8 == 0);
                $(assert!(std::mem::offset_of!($name, $field) == $offset);)*
            };
        )*
    };
}

commands! {
    /// Loads constants in one piece, of the DMA transfer with the same tag.
    LoadConstantsRequest = LOAD_CONSTANTS_REQUEST, "the request to load constants", 88 {
        /// For people.
        process_id: U32 = 4,
        /// Of the DMA transfer.
        tag: U32 = 8,
        /// Of the constants; zero for none.
        crc: U32 = 12,
        /// How many bytes there are.
        length: U64 = 16,
        /// For people; ends with a zero.
        name: [u8; NAME] = 24,
    }

    /// Makes room for constants. A descriptor of as many bytes as it says follows.
    LoadConstantsExRequest = LOAD_CONSTANTS_EX_REQUEST, "the request for room for constants", 80 {
        /// For people.
        process_id: U32 = 4,
        /// For people; ends with a zero.
        name: [u8; NAME] = 8,
        /// How many bytes the descriptor has.
        descriptor_length: U32 = 72,
        /// Zero.
        padding: U32 = 76,
    }

    /// Loads a part of constants that there is room for, of the DMA transfer with the same tag.
    LoadConstantsPayloadRequest = LOAD_CONSTANTS_PAYLOAD_REQUEST, "the request to load a part of constants", 32 {
        /// For people.
        process_id: U32 = 4,
        /// Of the DMA transfer.
        tag: U32 = 8,
        /// The constants.
        constants_id: U32 = 12,
        /// How many bytes there are.
        length: U64 = 16,
        /// Their address on the device.
        offset: U64 = 24,
    }

    /// The answer to each of the three.
    LoadConstantsResponse = LOAD_CONSTANTS_RESPONSE, "the answer to loading constants", 16 {
        /// Zero if it failed.
        constants_id: U32 = 4,
        /// How it went.
        status: I32 = 8,
        /// Zero.
        padding: U32 = 12,
    }

    /// Loads a network, of the DMA transfer with the same tag.
    LoadElfRequest = LOAD_ELF_REQUEST, "the request to load a network", 96 {
        /// Of the DMA transfer.
        tag: U32 = 4,
        /// For people.
        process_id: U32 = 8,
        /// Of the section `metadata`; zero for none.
        metadata_crc: U32 = 12,
        /// For people; ends with a zero.
        name: [u8; NAME] = 16,
        /// How many bytes there are.
        length: U64 = 80,
        /// Of the section `metadata_fb`; zero for none.
        flatbuffer_crc: U32 = 88,
        /// Zero.
        padding: U32 = 92,
    }

    /// A network is loaded.
    LoadElfResponse = LOAD_ELF_RESPONSE, "the answer to loading a network", 16 {
        /// Zero if it failed.
        elf_id: U32 = 4,
        /// How it went.
        status: I32 = 8,
        /// Zero.
        padding: U32 = 12,
    }

    /// Unloads constants.
    UnloadConstantsRequest = UNLOAD_CONSTANTS_REQUEST, "the request to unload constants", 8 {
        /// Which.
        constants_id: U32 = 4,
    }

    /// Constants are unloaded.
    UnloadConstantsResponse = UNLOAD_CONSTANTS_RESPONSE, "the answer to unloading constants", 8 {
        /// How it went.
        status: I32 = 4,
    }

    /// Unloads a network.
    UnloadElfRequest = UNLOAD_ELF_REQUEST, "the request to unload a network", 8 {
        /// Which.
        elf_id: U32 = 4,
    }

    /// A network is unloaded.
    UnloadElfResponse = UNLOAD_ELF_RESPONSE, "the answer to unloading a network", 8 {
        /// How it went.
        status: I32 = 4,
    }

    /// Starts a loaded network.
    ActivateRequest = ACTIVATE_REQUEST, "the request to activate a network", 48 {
        /// For people.
        process_id: U32 = 4,
        /// Zero for none.
        constants_id: U32 = 8,
        /// The network.
        elf_id: U32 = 12,
        /// Zero for none.
        reservation_type: U32 = 16,
        /// -1 for none.
        resource_reservation: I32 = 20,
        /// One if the message has a transaction that asks for a channel.
        wants_channel: U32 = 24,
        /// -1 for none.
        channel_reservation: I32 = 28,
        /// Of [`activation`].
        initial_state: I32 = 32,
        /// Zero.
        dma_type: U32 = 36,
        /// Zero.
        datapath_switching: u8 = 40,
        /// Zeros.
        padding: [u8; 7] = 41,
    }

    /// A network runs.
    ActivateResponse = ACTIVATE_RESPONSE, "the answer to activating a network", 88 {
        /// How it went.
        status: I32 = 4,
        /// Zero if it failed.
        activation_id: U32 = 8,
        /// The channel to it.
        channel: U32 = 12,
        /// The base of addresses in device memory.
        ddr_base: U64 = 16,
        /// As above, for memory that is mapped while it runs.
        dynamic_ddr_base: U64 = 24,
        /// The base of multicast addresses and doorbells.
        multicast_base: U64 = 32,
        /// As above, for command objects.
        command_multicast_base: U64 = 40,
        /// The type that was given.
        dma_type: U32 = 48,
        /// Physical channels of its own.
        physical_channels: U32 = 52,
        /// For switching of data paths, as the following.
        polling_address: U64 = 56,
        /// See above.
        polling_size: U32 = 64,
        /// See above.
        polling_data: U32 = 68,
        /// See above.
        doorbell_address: U64 = 72,
        /// See above.
        doorbell_length: u8 = 80,
        /// See above.
        doorbell_valid: u8 = 81,
        /// Which cores run it.
        cores: U32 = 82,
        /// Zeros.
        padding: [u8; 2] = 86,
    }

    /// Stops a network.
    DeactivateRequest = DEACTIVATE_REQUEST, "the request to deactivate a network", 16 {
        /// Which.
        activation_id: U32 = 4,
        /// One if the message has a transaction that gives the channel back.
        gives_channel: U32 = 8,
        /// Zero.
        padding: U32 = 12,
    }

    /// A network has stopped.
    DeactivateResponse = DEACTIVATE_RESPONSE, "the answer to deactivating a network", 8 {
        /// How it went.
        status: I32 = 4,
    }

    /// Asks what a device is and has.
    StatusRequest = STATUS_REQUEST, "the request for the device's status", 8 {
        /// Zero.
        information: u8 = 4,
        /// Zeros.
        padding: [u8; 3] = 5,
    }

    /// The identity and the resources of a device.
    StatusResponse = STATUS_RESPONSE, "the device's status", 504 {
        /// How it went.
        status: I32 = 4,
        /// The version of what follows.
        format: u8 = 8,
        /// Zeros.
        padding: [u8; 7] = 9,
        /// About the device.
        device: Information = 16,
        /// Versions of the software of its cores.
        cores: [u8; 168] = 336,
    }

    /// Sets resources apart as a group.
    CreateGroupRequest = CREATE_GROUP_REQUEST, "the request to set resources apart", 64 {
        /// For people.
        process_id: U32 = 4,
        /// The group that they are taken from; -1 for the device.
        source: I32 = 8,
        /// How many there are to be.
        cores: U32 = 12,
        /// See above.
        multicasts: U32 = 16,
        /// See above.
        semaphores: U32 = 20,
        /// See above.
        channels: U32 = 24,
        /// Zero.
        padding: U32 = 28,
        /// How many bytes of DDR that cores share.
        shared_memory: U64 = 32,
        /// How many bytes of DDR behind the second cache.
        l2_memory: U64 = 40,
        /// How many bytes of other DDR.
        memory: U64 = 48,
        /// How many networks it is for.
        networks: U16 = 56,
        /// Zeros.
        padding1: [u8; 6] = 58,
    }

    /// Resources are set apart.
    CreateGroupResponse = CREATE_GROUP_RESPONSE, "the answer to setting resources apart", 16 {
        /// How it went.
        status: I32 = 4,
        /// The group.
        group: I32 = 8,
        /// Zero.
        padding: U32 = 12,
    }

    /// Gives a group's resources back.
    ReleaseGroupRequest = RELEASE_GROUP_REQUEST, "the request to release a group of resources", 8 {
        /// The group.
        group: I32 = 4,
    }

    /// They are given back.
    ReleaseGroupResponse = RELEASE_GROUP_RESPONSE, "the answer to releasing a group of resources", 8 {
        /// How it went.
        status: I32 = 4,
    }

    /// Asks what is free.
    ResourceInfoRequest = RESOURCE_INFO_REQUEST, "the request for free resources", 16 {
        /// For people.
        process_id: U32 = 4,
        /// -1 for the whole device.
        group: I32 = 8,
        /// Zero.
        padding: U32 = 12,
    }

    /// The free resources.
    ResourceInfoResponse = RESOURCE_INFO_RESPONSE, "the answer with free resources", 56 {
        /// The group of the request.
        group: I32 = 4,
        /// The free resources.
        resources: Resources = 8,
        /// How it went.
        status: I32 = 48,
        /// Zero.
        padding: U32 = 52,
    }

    /// Asks for frequencies, and for what was done lately.
    PerformanceInfoRequest = PERFORMANCE_INFO_REQUEST, "the request for a device's performance", 8 {
        /// Zero.
        padding: U32 = 4,
    }

    /// As in the status of a device.
    PerformanceInfoResponse = PERFORMANCE_INFO_RESPONSE, "a device's performance", 64 {
        /// How it went.
        status: I32 = 4,
        /// The same bytes.
        performance: [u8; 56] = 8,
    }

    /// Asks for other states of networks that are active.
    ActivationStateRequest = ACTIVATION_STATE_REQUEST, "the request for other states of networks", 72 {
        /// How many of the changes count.
        count: U32 = 4,
        /// The changes.
        changes: [StateChange; 8] = 8,
    }

    /// All states have changed, or one could not.
    ActivationStateResponse = ACTIVATION_STATE_RESPONSE, "the answer about states of networks", 8 {
        /// How it went.
        status: I32 = 4,
    }
}

/// Another state of a network that is active.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct StateChange {
    /// The network.
    pub activation_id: U32,
    /// One of [`activation`].
    pub state: I32,
}

/// The state of a network that is active.
pub mod activation {
    /// Loaded, without power.
    pub const STANDBY: i32 = 0;
    /// It can be used.
    pub const READY: i32 = 1;
    /// About to stop, with little power.
    pub const STOPPING: i32 = 2;
}

/// A device's resources, all of them or the free ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Resources {
    /// Mebibytes.
    pub dram_total: U32,
    pub dram_free: U32,
    /// From 0, none, to 100.
    pub fragmentation: U32,
    pub channels_total: u8,
    pub channels_free: u8,
    pub cores_total: u8,
    pub cores_free: u8,
    pub multicasts_total: U32,
    pub multicasts_free: U32,
    pub semaphores_total: U32,
    pub semaphores_free: U32,
    pub physical_channels_total: u8,
    pub physical_channels_reserved: u8,
    pub padding: [u8; 6],
}

/// The identity of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Information {
    /// Major, minor, patch, build.
    pub firmware: [u8; 4],
    pub firmware_image: [u8; 38],
    pub firmware_oem_image: [u8; 38],
    pub firmware_variant: [u8; 16],
    pub hardware_version: U32,
    pub serial: [u8; 16],
    pub board_serial: [u8; 32],
    pub compiler: U32,
    pub resources: Resources,
    /// Frequencies, and what was done lately.
    pub performance: [u8; 56],
    pub constants_loaded: U32,
    pub constants_used: U32,
    pub networks_loaded: u8,
    pub networks_active: u8,
    pub metadata_major: U16,
    pub metadata_minor: U16,
    pub commands_major: U16,
    pub commands_minor: U16,
    pub boot_image: [u8; 24],
    pub needs_reset: u8,
    pub padding: u8,
    pub pvs_image: U32,
    pub defective_cores: U64,
    pub time_offset_us: U64,
    pub retired_pages: U32,
    pub sku: u8,
    pub complex: u8,
    pub padding1: [u8; 2],
}

const _: () = {
    assert!(size_of::<Resources>() == 40);
    assert!(size_of::<Information>() == 320);
    assert!(std::mem::offset_of!(Information, hardware_version) == 96);
    assert!(std::mem::offset_of!(Information, resources) == 152);
    assert!(std::mem::offset_of!(Information, commands_major) == 262);
    assert!(std::mem::offset_of!(Information, defective_cores) == 296);
    assert!(std::mem::offset_of!(Information, sku) == 316);
};

impl Default for Information {
    fn default() -> Self {
        zerocopy::FromZeros::new_zeroed()
    }
}

impl Default for Resources {
    fn default() -> Self {
        zerocopy::FromZeros::new_zeroed()
    }
}

impl Information {
    /// The version of the commands that it understands.
    pub fn commands(&self) -> Version {
        Version { major: self.commands_major.get(), minor: self.commands_minor.get() }
    }

    /// The version of networks' metadata that it understands.
    pub fn metadata(&self) -> Version {
        Version { major: self.metadata_major.get(), minor: self.metadata_minor.get() }
    }

    /// Its generation of hardware: the major number is the upper half of the word.
    pub fn hardware(&self) -> Version {
        let [minor, major] = [self.hardware_version.get() & 0xffff, self.hardware_version.get() >> 16];
        let half = |number| u16::try_from(number).unwrap_or(u16::MAX);
        Version { major: half(major), minor: half(minor) }
    }
}

/// A name as commands have it: cut where it is too long, and always with a zero at its end.
pub fn name(text: &str) -> [u8; NAME] {
    let mut name = [0; NAME];
    for (target, &byte) in name.iter_mut().take(NAME - 1).zip(text.as_bytes()) {
        *target = byte;
    }
    name
}

/// The kind of a command.
pub fn kind(command: &[u8]) -> Result<u32, Malformed> {
    let (kind, _) = U32::read_from_prefix(command).map_err(|_| Malformed::TooShort {
        what: "a command",
        needed: 4,
        found: command.len(),
    })?;
    Ok(kind.get())
}

/// A command's structure, and what follows it.
pub fn read<T: Command>(command: &[u8]) -> Result<(T, &[u8]), Malformed> {
    let found = kind(command)?;
    if found != T::KIND {
        return Err(Malformed::Command { found, expected: T::KIND });
    }
    let short = Malformed::TooShort { what: T::NAME, needed: size_of::<T>(), found: command.len() };
    T::read_from_prefix(command).map_err(|_| short)
}

/// A request's bytes: its structure, what belongs to it, and the [tail](TAIL), to a multiple of eight.
pub fn request<T: Command>(command: &T, more: &[u8]) -> Vec<u8> {
    let mut bytes = [command.as_bytes(), more].concat();
    bytes.resize(bytes.len().next_multiple_of(8) + TAIL, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(bytes: &[u8]) -> Vec<u32> {
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    }

    #[test]
    fn activation_has_its_bytes() {
        let command = ActivateRequest {
            process_id: 77.into(),
            constants_id: 2.into(),
            elf_id: 3.into(),
            resource_reservation: (-1).into(),
            wants_channel: 1.into(),
            channel_reservation: (-1).into(),
            initial_state: activation::READY.into(),
            ..ActivateRequest::default()
        };
        let expected: &[u32] = &[9, 77, 2, 3, 0, u32::MAX, 1, u32::MAX, 1, 0, 0, 0, 0, 0];
        assert_eq!(words(&request(&command, &[])), expected);
    }

    #[test]
    fn answer_to_an_activation_is_read_from_its_bytes() {
        let mut bytes = vec![0; 96];
        for (at, value) in [(0, 10_u32), (8, 5), (12, 7), (16, 0x8000), (32, 0x40_0000), (82, 0xffff)] {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        let (answer, rest) = read::<ActivateResponse>(&bytes).unwrap();
        let numbers = (answer.activation_id.get(), answer.channel.get(), answer.cores.get());
        assert_eq!(numbers, (5, 7, 0xffff));
        assert_eq!((answer.ddr_base.get(), answer.multicast_base.get()), (0x8000, 0x40_0000));
        assert_eq!(rest.len(), 8, "an answer may have a tail as well");
    }

    #[test]
    fn descriptors_follow_and_are_padded() {
        let command = LoadConstantsExRequest { descriptor_length: 5.into(), ..Default::default() };
        let bytes = request(&command, &[1, 2, 3, 4, 5]);
        assert_eq!(bytes.len(), 80 + 8 + TAIL);
        let (_, rest) = read::<LoadConstantsExRequest>(&bytes).unwrap();
        assert_eq!(&rest[..5], [1, 2, 3, 4, 5]);
    }

    #[test]
    fn another_command_is_not_taken_for_the_one_that_is_read() {
        let bytes = LoadElfResponse::default();
        let refused = read::<ActivateResponse>(bytes.as_bytes()).unwrap_err();
        assert_eq!(refused, Malformed::Command { found: 4, expected: 10 });
        let refused = read::<LoadElfResponse>(&bytes.as_bytes()[..12]).unwrap_err();
        assert_eq!(refused.to_string(), "the answer to loading a network needs 16 bytes, and there are 12");
        assert!(matches!(kind(&[1, 0]), Err(Malformed::TooShort { .. })));
    }

    #[test]
    fn names_always_end() {
        assert_eq!(&name("abc")[..4], b"abc\0");
        assert_eq!(name(&"x".repeat(100))[62..], [b'x', 0]);
    }

    proptest! {
        #[test]
        fn fuzz_no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = read::<ActivateResponse>(&bytes);
            let _ = read::<StatusResponse>(&bytes);
            let _ = read::<LoadConstantsExRequest>(&bytes);
        }
    }
}
