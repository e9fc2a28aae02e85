// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Metadata: the list of DMA requests that make one inference, and who it is for.
//!
//! It is a FlatBuffer. The vendor's compiler writes it into the section `metadata`, behind eight bytes that stop older
//! firmware; other images have it in `metadata_fb`, or without those bytes, or as a plain structure of version 0.12.
//! Whatever else it says is for the device alone.

use super::bytes::{array, piece, place, u16_at, u32_at, u64_at};
use super::{ParseError, elf};
use crate::nnc::Version;
use crate::uapi::{Semaphore, sem};
use flatbuffers::{FlatBufferBuilder, TableFinishedWIPOffset, WIPOffset};
use hal_backend::container::{Table, slot};

/// The machine of images: the cores' kind of processor, in ELF's numbers.
const HEXAGON: u16 = 164;

/// The sections that hold the metadata.
const SECTION: &str = "metadata_fb";
const COMPILER_SECTION: &str = "metadata";

/// The version of metadata that is written.
pub const METADATA: Version = Version { major: 1, minor: 0 };

/// The version before it. Its fields are the same.
const OLD: Version = Version { major: 0, minor: 12 };

/// The generation of hardware that is sold.
pub const HARDWARE: Version = Version { major: 2, minor: 0 };

/// The beginning of the plain structure, which has the old version.
const PLAIN: u32 = 12 << 16;

/// The word that may precede a FlatBuffer in the compiler's section: a version that old firmware refuses.
const STOPPER: u64 = 1;

/// How many DMA requests a network may have. A channel's rings have a few hundred elements.
const REQUESTS_MAX: usize = 4096;

/// Which way a buffer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// To the device.
    In,
    /// From the device.
    Out,
}

/// The address space of the other end of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// In memory of the cores that belong to this multicast group.
    Multicast(u16),
    /// In the memory of the network.
    Ddr,
}

/// A write after a transfer, which wakes a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doorbell {
    /// In the memory of a multicast group.
    pub offset: u64,
    /// The word to write.
    pub data: u32,
    /// The multicast group.
    pub group: u16,
    /// 8, 16 or 32.
    pub bits: u32,
}

/// One DMA request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Which buffer of the host.
    pub buffer: u16,
    /// Which way.
    pub direction: Direction,
    /// The offset in the buffer.
    pub host_offset: u64,
    /// The offset in the space of the device.
    pub device_offset: u64,
    /// How many bytes. None means that semaphores and doorbell are all there is to it.
    pub size: u32,
    /// The address space of the other end.
    pub space: Space,
    /// At most four, and at most one of them before the transfer.
    pub semaphores: Vec<Semaphore>,
    /// If there is one.
    pub doorbell: Option<Doorbell>,
}

/// A network's description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// The version of this description.
    pub version: Version,
    /// Its name.
    pub name: String,
    /// How many cores it was compiled for.
    pub cores: u16,
    /// The generation of hardware that it was compiled for.
    pub hardware: Version,
    /// How many semaphores it uses, and with what they begin.
    pub semaphores: Vec<u32>,
    /// How much memory it shares with the DMA requests.
    pub ddr: u64,
    /// The transfers of an inference, in this order.
    pub requests: Vec<Request>,
}

impl Default for Network {
    fn default() -> Self {
        Self {
            version: METADATA,
            name: String::new(),
            cores: 0,
            hardware: HARDWARE,
            semaphores: Vec::new(),
            ddr: 0,
            requests: Vec::new(),
        }
    }
}

/// Fields of tables, in the order of the vendor's schema.
mod field {
    pub(super) const VERSION_MAJOR: u16 = 0;
    pub(super) const VERSION_MINOR: u16 = 1;
    pub(super) const NAME: u16 = 2;
    pub(super) const REQUIRED: u16 = 3;
    pub(super) const SEMAPHORES: u16 = 4;
    pub(super) const REQUESTS: u16 = 6;
    pub(super) const STATIC_DDR: u16 = 11;
    pub(super) const CORES: u16 = 19;
    pub(super) const SEMAPHORE_COUNT: u16 = 20;
    pub(super) const HARDWARE_MAJOR: u16 = 21;
    pub(super) const HARDWARE_MINOR: u16 = 22;

    pub(super) const REQUEST_SEMAPHORES: u16 = 0;
    pub(super) const REQUEST_DOORBELLS: u16 = 1;
    pub(super) const REQUEST_HOST_OFFSET: u16 = 2;
    pub(super) const REQUEST_DEVICE_OFFSET: u16 = 3;
    pub(super) const REQUEST_SIZE: u16 = 4;
    pub(super) const REQUEST_BUFFER: u16 = 5;
    pub(super) const REQUEST_GROUP: u16 = 6;
    pub(super) const REQUEST_SPACE: u16 = 7;
    pub(super) const REQUEST_DIRECTION: u16 = 8;

    pub(super) const SEMAPHORE_NUMBER: u16 = 0;
    pub(super) const SEMAPHORE_VALUE: u16 = 1;
    pub(super) const SEMAPHORE_COMMAND: u16 = 2;
    pub(super) const SEMAPHORE_PRESYNC: u16 = 3;
    pub(super) const SEMAPHORE_IN_FENCE: u16 = 4;
    pub(super) const SEMAPHORE_OUT_FENCE: u16 = 5;

    pub(super) const DOORBELL_OFFSET: u16 = 0;
    pub(super) const DOORBELL_DATA: u16 = 1;
    pub(super) const DOORBELL_GROUP: u16 = 2;
    pub(super) const DOORBELL_SIZE: u16 = 3;
}

/// Fields of a DMA request that an image may ask its reader to know. `portId` and `transactionId` do not concern a
/// single network on a single device.
const KNOWN: [&str; 12] = [
    "semaphoreOps",
    "doorbellOps",
    "hostOffset",
    "devOffset",
    "size",
    "num",
    "mcId",
    "devAddrSpace",
    "inOut",
    "portId",
    "transactionId",
    "data",
];

impl Network {
    /// The description in an image.
    pub fn read(image: &[u8]) -> Result<Self, ParseError> {
        let section = elf::section(image, SECTION)?;
        let bytes = section.or(elf::section(image, COMPILER_SECTION)?).ok_or_else(|| {
            ParseError::invalid(format!(
                "the image has neither a section {COMPILER_SECTION:?} nor {SECTION:?}; it is no network for this \
                 device"
            ))
        });
        let network = bytes.and_then(|bytes| match u64_at(bytes, 0, "metadata") {
            Ok(STOPPER) => Self::read_flat(bytes.get(8..).unwrap_or_default()),
            _ if u32_at(bytes, 0, "metadata") == Ok(PLAIN) => Self::read_plain(bytes),
            _ => Self::read_flat(bytes),
        });
        network.map_err(|error| error.within("metadata"))
    }

    fn read_flat(bytes: &[u8]) -> Result<Self, ParseError> {
        hal_backend::container::read(bytes, None, |root| {
            let (major, minor) = (root.u16(field::VERSION_MAJOR, 0)?, root.u16(field::VERSION_MINOR, 0)?);
            let version = Version { major, minor };
            check_version(version)?;
            for required in root.texts(field::REQUIRED, "required fields")?.unwrap_or_default() {
                check_required(&required)?;
            }
            let mut semaphores = root.words(field::SEMAPHORES, "semaphores")?.unwrap_or_default();
            semaphores.resize(usize::from(root.u16(field::SEMAPHORE_COUNT, 0)?), 0);
            let requests = root.tables(field::REQUESTS, "DMA request", flat_request)?;
            let (major, minor) = (root.u8(field::HARDWARE_MAJOR, 0)?, root.u8(field::HARDWARE_MINOR, 0)?);
            Ok(Self {
                version,
                name: root.text(field::NAME, "name")?.unwrap_or_default().to_owned(),
                cores: root.u16(field::CORES, 0)?,
                hardware: Version { major: major.into(), minor: minor.into() },
                semaphores,
                ddr: root.u64(field::STATIC_DDR, 0)?,
                requests: at_most(requests, REQUESTS_MAX, "DMA requests")?,
            })
        })
    }

    /// The plain structure (`AICMetadata`): places in it are counted from its beginning.
    fn read_plain(bytes: &[u8]) -> Result<Self, ParseError> {
        let long = |at| u64_at(bytes, at, "a field");
        let half = |at| u16_at(bytes, at, "a field");
        let count = usize::from(half(126)?);
        if count > REQUESTS_MAX {
            return Err(ParseError::invalid(format!("{count} DMA requests, and {REQUESTS_MAX} is the most")));
        }
        let name = bytes.get(place(long(8)?)..).unwrap_or_default();
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        let semaphores = piece(bytes, place(long(16)?), usize::from(half(124)?) * 4, "the semaphores")?;
        let semaphores = semaphores.chunks_exact(4).map(|word| u32_at(word, 0, "a semaphore"));
        let requests = piece(bytes, place(long(32)?), count * 48, "the DMA requests")?;
        let requests = requests.chunks_exact(48).enumerate().map(|(number, request)| {
            plain_request(bytes, request).map_err(|error| error.within(format_args!("DMA request {number}")))
        });
        let [major, minor] = array(bytes, 132, "the hardware's version")?;
        Ok(Self {
            version: OLD,
            name: String::from_utf8_lossy(name).into_owned(),
            cores: half(122)?,
            hardware: Version { major: major.into(), minor: minor.into() },
            semaphores: semaphores.collect::<Result<_, ParseError>>()?,
            ddr: long(72)?,
            requests: requests.collect::<Result<_, ParseError>>()?,
        })
    }

    /// An image that says this of itself and has no code: for tests of what loads networks.
    pub fn image(&self) -> Vec<u8> {
        elf::write(HEXAGON, &[(SECTION, &self.write())])
    }

    /// The section `metadata_fb` that says this.
    pub fn write(&self) -> Vec<u8> {
        let mut builder = FlatBufferBuilder::new();
        let requests: Vec<_> =
            self.requests.iter().map(|request| write_request(&mut builder, request)).collect();
        let requests = builder.create_vector(&requests);
        let semaphores = builder.create_vector(&self.semaphores);
        let name = builder.create_string(&self.name);
        let count = u16::try_from(self.semaphores.len()).unwrap_or(u16::MAX);
        let byte = |number: u16| u8::try_from(number).unwrap_or(u8::MAX);
        let table = builder.start_table();
        builder.push_slot_always(slot(field::VERSION_MAJOR), self.version.major);
        builder.push_slot_always(slot(field::VERSION_MINOR), self.version.minor);
        builder.push_slot_always(slot(field::NAME), name);
        builder.push_slot_always(slot(field::SEMAPHORES), semaphores);
        builder.push_slot_always(slot(field::REQUESTS), requests);
        builder.push_slot(slot(field::STATIC_DDR), self.ddr, 0);
        builder.push_slot(slot(field::CORES), self.cores, 0);
        builder.push_slot(slot(field::SEMAPHORE_COUNT), count, 0);
        builder.push_slot(slot(field::HARDWARE_MAJOR), byte(self.hardware.major), 0);
        builder.push_slot(slot(field::HARDWARE_MINOR), byte(self.hardware.minor), 0);
        let root = builder.end_table(table);
        builder.finish_minimal(root);
        builder.finished_data().to_vec()
    }
}

fn check_version(version: Version) -> Result<(), ParseError> {
    if [OLD.major, METADATA.major].contains(&version.major) {
        return Ok(());
    }
    Err(ParseError::incompatible(format!(
        "version {version}, and {OLD} and {METADATA} are what is understood; compile the network with another SDK"
    )))
}

/// Refuses an image that says its DMA requests cannot be understood without a field that is not read here.
fn check_required(name: &str) -> Result<(), ParseError> {
    let Some((_, rest)) = name.split_once("dmaRequests->") else { return Ok(()) };
    // A field of the request, or of its semaphores or doorbells; what is behind it describes its place.
    let field = rest.split(['|', ':', '-']).next().unwrap_or_default();
    if KNOWN.contains(&field) {
        return Ok(());
    }
    Err(ParseError::incompatible(format!(
        "its DMA requests have a field {field:?} that must be understood and is not; update this driver"
    )))
}

/// The elements of a vector; refused if there are more than `most`.
fn at_most<T>(found: Option<Vec<T>>, most: usize, name: &str) -> Result<Vec<T>, ParseError> {
    let found = found.unwrap_or_default();
    if found.len() > most {
        return Err(
            ParseError::invalid(format!("{} of them, and {most} is the most", found.len())).within(name)
        );
    }
    Ok(found)
}

fn flat_request(table: &mut Table<'_, '_, '_>) -> Result<Request, ParseError> {
    let semaphores = table.tables(field::REQUEST_SEMAPHORES, "semaphore", |one| {
        let number = one.u16(field::SEMAPHORE_NUMBER, 0)?;
        let value = one.u16(field::SEMAPHORE_VALUE, 0)?;
        let bytes = [
            one.u8(field::SEMAPHORE_COMMAND, 0)?,
            one.u8(field::SEMAPHORE_PRESYNC, 0)?,
            one.u8(field::SEMAPHORE_IN_FENCE, 0)?,
            one.u8(field::SEMAPHORE_OUT_FENCE, 0)?,
        ];
        semaphore(number, value, bytes)
    });
    let doorbells = table.tables(field::REQUEST_DOORBELLS, "doorbell", |one| {
        let group = one.u16(field::DOORBELL_GROUP, 0)?;
        let (offset, data) = (one.u64(field::DOORBELL_OFFSET, 0)?, one.u32(field::DOORBELL_DATA, 0)?);
        doorbell(offset, data, group, one.u8(field::DOORBELL_SIZE, 0)?)
    });
    let request = Request {
        buffer: table.u16(field::REQUEST_BUFFER, 0)?,
        direction: direction(table.u8(field::REQUEST_DIRECTION, 0)?)?,
        host_offset: table.u64(field::REQUEST_HOST_OFFSET, 0)?,
        device_offset: table.u64(field::REQUEST_DEVICE_OFFSET, 0)?,
        size: table.u32(field::REQUEST_SIZE, 0)?,
        space: space(table.u8(field::REQUEST_SPACE, 0)?, table.u16(field::REQUEST_GROUP, 0)?)?,
        semaphores: at_most(semaphores?, 4, "semaphores")?,
        doorbell: at_most(doorbells?, 1, "doorbells")?.into_iter().next(),
    };
    check_presync(&request).map(|()| request)
}

/// A request of the plain structure (`AICMDDMARequest`).
fn plain_request(bytes: &[u8], request: &[u8]) -> Result<Request, ParseError> {
    let [semaphore_count, doorbell_count, space_number, way] = array(request, 40, "a field")?;
    if semaphore_count > 4 || doorbell_count > 1 {
        let text =
            format!("{semaphore_count} semaphores and {doorbell_count} doorbells; 4 and 1 are the most");
        return Err(ParseError::unsupported(text));
    }
    let at = place(u64_at(request, 0, "a field")?);
    let semaphores = piece(bytes, at, usize::from(semaphore_count) * 8, "the semaphores")?;
    let semaphores = semaphores.chunks_exact(8).map(|one| {
        let flags = array(one, 4, "a semaphore")?;
        semaphore(u16_at(one, 0, "a semaphore")?, u16_at(one, 2, "a semaphore")?, flags)
    });
    let semaphores: Result<Vec<Semaphore>, ParseError> = semaphores.collect();
    let at = place(u64_at(request, 8, "a field")?);
    let doorbells = piece(bytes, at, usize::from(doorbell_count) * 16, "the doorbell")?;
    let doorbell = doorbells.chunks_exact(16).next().map(|one| {
        let [size] = array(one, 14, "a doorbell")?;
        let (offset, data) = (u64_at(one, 0, "a doorbell")?, u32_at(one, 8, "a doorbell")?);
        doorbell(offset, data, u16_at(one, 12, "a doorbell")?, size)
    });
    let request = Request {
        buffer: u16_at(request, 36, "a field")?,
        direction: direction(way)?,
        host_offset: u64_at(request, 16, "a field")?,
        device_offset: u64_at(request, 24, "a field")?,
        size: u32_at(request, 32, "a field")?,
        space: space(space_number, u16_at(request, 38, "a field")?)?,
        semaphores: semaphores?,
        doorbell: doorbell.transpose()?,
    };
    check_presync(&request).map(|()| request)
}

fn direction(number: u8) -> Result<Direction, ParseError> {
    match number {
        0 => Ok(Direction::In),
        1 => Ok(Direction::Out),
        _ => Err(ParseError::invalid(format!("direction {number}; there are 0 (in) and 1 (out)"))),
    }
}

fn space(number: u8, group: u16) -> Result<Space, ParseError> {
    match number {
        0 => Ok(Space::Multicast(group)),
        1 => Ok(Space::Ddr),
        2 => Err(ParseError::unsupported(
            "address space 2 (dynamically mapped DDR), which takes another allocation at activation; compile the \
             network without it",
        )),
        _ => Err(ParseError::invalid(format!("address space {number}; there are 0 (multicast) and 1 (DDR)"))),
    }
}

fn doorbell(offset: u64, data: u32, group: u16, size: u8) -> Result<Doorbell, ParseError> {
    let bits = match size {
        0 => 8,
        1 => 16,
        2 => 32,
        _ => return Err(ParseError::invalid(format!("a doorbell of size {size}; there are 0, 1 and 2"))),
    };
    if !offset.is_multiple_of(u64::from(bits / 8)) {
        let text = format!("a doorbell of {bits} bits at {offset:#x}; it is aligned to its length");
        return Err(ParseError::invalid(text));
    }
    Ok(Doorbell { offset, data, group, bits })
}

/// A semaphore command: its flags are the command, whether it is before the transfer, and both fences.
fn semaphore(number: u16, value: u16, flags: [u8; 4]) -> Result<Semaphore, ParseError> {
    let [cmd, presync, in_fence, out_fence] = flags;
    let index = u8::try_from(number).ok().filter(|&index| index < sem::COUNT);
    let (Some(index), true) = (index, value <= sem::VALUE_MAX && cmd <= sem::WAIT_GT_0 && presync <= 1)
    else {
        return Err(ParseError::invalid(format!(
            "command {cmd} to semaphore {number} with {value}, presync {presync}; the hardware has commands 0 to 6, \
             semaphores 0 to 31 and values of 12 bits"
        )));
    };
    let fence = |wanted: u8, flag: u8| if wanted == 0 { 0 } else { flag };
    let flags = fence(in_fence, sem::IN_SYNC_FENCE) | fence(out_fence, sem::OUT_SYNC_FENCE);
    Ok(Semaphore { val: value, index, presync, cmd, flags, pad: 0 })
}

fn check_presync(request: &Request) -> Result<(), ParseError> {
    let before = request.semaphores.iter().filter(|semaphore| semaphore.presync == 1).count();
    if before > 1 {
        return Err(ParseError::invalid(format!("{before} semaphores before the transfer; one is the most")));
    }
    Ok(())
}

type Written = WIPOffset<TableFinishedWIPOffset>;

fn write_request(builder: &mut FlatBufferBuilder<'_>, request: &Request) -> Written {
    let semaphores: Vec<_> =
        request.semaphores.iter().map(|semaphore| write_semaphore(builder, semaphore)).collect();
    let semaphores = builder.create_vector(&semaphores);
    let doorbells: Vec<_> =
        request.doorbell.iter().map(|doorbell| write_doorbell(builder, doorbell)).collect();
    let doorbells = builder.create_vector(&doorbells);
    let (space, group) = match request.space {
        Space::Multicast(group) => (0, group),
        Space::Ddr => (1_u8, 0),
    };
    let direction = match request.direction {
        Direction::In => 0_u8,
        Direction::Out => 1,
    };
    let table = builder.start_table();
    builder.push_slot_always(slot(field::REQUEST_SEMAPHORES), semaphores);
    builder.push_slot_always(slot(field::REQUEST_DOORBELLS), doorbells);
    builder.push_slot(slot(field::REQUEST_HOST_OFFSET), request.host_offset, 0);
    builder.push_slot(slot(field::REQUEST_DEVICE_OFFSET), request.device_offset, 0);
    builder.push_slot(slot(field::REQUEST_SIZE), request.size, 0);
    builder.push_slot(slot(field::REQUEST_BUFFER), request.buffer, 0);
    builder.push_slot(slot(field::REQUEST_GROUP), group, 0);
    builder.push_slot(slot(field::REQUEST_SPACE), space, 0);
    builder.push_slot(slot(field::REQUEST_DIRECTION), direction, 0);
    builder.end_table(table)
}

fn write_semaphore(builder: &mut FlatBufferBuilder<'_>, semaphore: &Semaphore) -> Written {
    let fence = |flag: u8| u8::from(semaphore.flags & flag != 0);
    let table = builder.start_table();
    builder.push_slot(slot(field::SEMAPHORE_NUMBER), u16::from(semaphore.index), 0);
    builder.push_slot(slot(field::SEMAPHORE_VALUE), semaphore.val, 0);
    builder.push_slot(slot(field::SEMAPHORE_COMMAND), semaphore.cmd, 0);
    builder.push_slot(slot(field::SEMAPHORE_PRESYNC), semaphore.presync, 0);
    builder.push_slot(slot(field::SEMAPHORE_IN_FENCE), fence(sem::IN_SYNC_FENCE), 0);
    builder.push_slot(slot(field::SEMAPHORE_OUT_FENCE), fence(sem::OUT_SYNC_FENCE), 0);
    builder.end_table(table)
}

fn write_doorbell(builder: &mut FlatBufferBuilder<'_>, doorbell: &Doorbell) -> Written {
    let size = match doorbell.bits {
        8 => 0_u8,
        16 => 1,
        _ => 2,
    };
    let table = builder.start_table();
    builder.push_slot(slot(field::DOORBELL_OFFSET), doorbell.offset, 0);
    builder.push_slot(slot(field::DOORBELL_DATA), doorbell.data, 0);
    builder.push_slot(slot(field::DOORBELL_GROUP), doorbell.group, 0);
    builder.push_slot(slot(field::DOORBELL_SIZE), size, 0);
    builder.end_table(table)
}

#[cfg(test)]
pub(super) mod tests;
