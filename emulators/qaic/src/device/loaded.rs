// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The networks and constants that users have loaded onto a device.

use super::control::MessageContext;
use super::network::Active;
use crate::machine::Card;
use hal_qaic_abi::container::metadata::METADATA;
use hal_qaic_abi::container::{Network, elf};
use hal_qaic_abi::nnc::command::{LoadConstantsPayloadRequest, LoadConstantsRequest, LoadElfRequest, Status};
use hal_qaic_abi::nnc::crc::crc32;
use std::collections::BTreeMap;

/// A network that is loaded.
pub(super) struct LoadedNetwork {
    pub(super) owner: u32,
    pub(super) image: Vec<u8>,
}

/// Constants that are loaded. No program of the emulator reads them: only their size is kept.
pub(super) struct Constants {
    pub(super) owner: u32,
    pub(super) length: u64,
}

/// An item that belongs to a user.
pub(super) trait UserOwned {
    fn owner(&self) -> u32;
}

impl UserOwned for LoadedNetwork {
    fn owner(&self) -> u32 {
        self.owner
    }
}

impl UserOwned for Constants {
    fn owner(&self) -> u32 {
        self.owner
    }
}

impl UserOwned for Active {
    fn owner(&self) -> u32 {
        self.owner
    }
}

impl MessageContext {
    /// The first bytes of the transfer with this tag.
    fn transfer(&self, tag: u32, length: u64) -> Result<&[u8], Status> {
        let bytes = self.transfers.get(&tag).ok_or(Status::PARAMETER)?;
        usize::try_from(length).ok().and_then(|length| bytes.get(..length)).ok_or(Status::LENGTH)
    }
}

/// An item of this user's, or the error.
pub(super) fn own(found: Option<&impl UserOwned>, user: u32) -> Result<(), Status> {
    match found {
        None => Err(Status::NOT_FOUND),
        Some(found) if found.owner() != user => Err(Status::NOT_PERMITTED),
        Some(_) => Ok(()),
    }
}

impl Card {
    /// The bytes of a command's transfer, if their checksums are right and the device has room for them.
    fn load<'a>(
        &self,
        context: &'a MessageContext,
        tag: u32,
        length: u64,
        checks: &[(Option<&str>, u32)],
    ) -> Result<&'a [u8], Status> {
        let bytes = context.transfer(tag, length)?;
        for &(section, crc) in checks.iter().filter(|(_, crc)| *crc != 0) {
            let checked = match section {
                None => bytes,
                Some(name) => elf::section(bytes, name).ok().flatten().ok_or(Status::METADATA)?,
            };
            if crc32(checked) != crc {
                return Err(Status::METADATA);
            }
        }
        if !self.server.has_room(length) {
            return Err(Status::MEMORY);
        }
        Ok(bytes)
    }

    pub(super) fn load_network(
        &mut self,
        context: &MessageContext,
        request: &LoadElfRequest,
    ) -> Result<u32, Status> {
        let checks = [
            (Some("metadata"), request.metadata_crc.get()),
            (Some("metadata_fb"), request.flatbuffer_crc.get()),
        ];
        let image = self.load(context, request.tag.get(), request.length.get(), &checks)?.to_vec();
        // What cannot be read is refused when it is activated.
        if Network::read(&image).is_ok_and(|network| network.version.major != METADATA.major) {
            return Err(Status::METADATA);
        }
        let number = self.server.number();
        self.server.networks.insert(number, LoadedNetwork { owner: context.user, image });
        Ok(number)
    }

    pub(super) fn load_constants(
        &mut self,
        context: &MessageContext,
        request: &LoadConstantsRequest,
    ) -> Result<u32, Status> {
        let checks = [(None, request.crc.get())];
        let length = self.load(context, request.tag.get(), request.length.get(), &checks)?.len() as u64;
        let number = self.server.number();
        self.server.constants.insert(number, Constants { owner: context.user, length });
        Ok(number)
    }

    pub(super) fn load_payload(
        &mut self,
        context: &MessageContext,
        request: &LoadConstantsPayloadRequest,
    ) -> Result<u32, Status> {
        let number = request.constants_id.get();
        own(self.server.constants.get(&number), context.user)?;
        let payload = context.transfer(request.tag.get(), request.length.get())?.len() as u64;
        let end = request.offset.get().checked_add(payload).ok_or(Status::PARAMETER)?;
        let length = self.server.constants.get(&number).map_or(0, |constants| constants.length);
        if !self.server.has_room(end.saturating_sub(length)) {
            return Err(Status::MEMORY);
        }
        let constants = self.server.constants.get_mut(&number).ok_or(Status::NOT_FOUND)?;
        constants.length = length.max(end);
        Ok(number)
    }
}

/// Unloads an item that is not in use.
pub(super) fn unload<T: UserOwned>(
    loaded: &mut BTreeMap<u32, T>,
    number: u32,
    user: u32,
    used: bool,
) -> Result<(), Status> {
    own(loaded.get(&number), user)?;
    if used {
        return Err(Status::NOT_PERMITTED);
    }
    loaded.remove(&number);
    Ok(())
}
