// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Active networks, and their memory.

use crate::programs::{Program, ProgramLayout};
use emulator_core::file::mapped_file;
use hal_backend::HostRange;
use hal_qaic_abi::container::Network;
use hal_qaic_abi::nnc::command::Status;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The distance between the memories of multicast groups.
const GROUP: u64 = 0x80_0000;
/// The base address of networks' memory.
const DDR: u64 = 0x1_0000_0000;
/// The base address of multicast groups.
const MULTICAST: u64 = 0x100_0000_0000;

/// An active network. The part that its channel and its cores use stays as long as they use it.
pub(crate) struct Active {
    pub(crate) owner: u32,
    /// The numbers of the loaded network and of its constants.
    pub(crate) network: u32,
    pub(crate) constants: u32,
    pub(crate) channel: Option<u32>,
    pub(crate) cores: u16,
    /// How many multicast groups.
    pub(crate) multicasts: u64,
    pub(crate) shared: Arc<SharedNetwork>,
}

/// The part that a channel and its cores share.
pub(crate) struct SharedNetwork {
    pub(crate) program: Program,
    pub(crate) layout: ProgramLayout,
    pub(crate) ddr: Region,
    pub(crate) multicast: Region,
    /// The initial values of the semaphores.
    pub(crate) semaphores: Vec<u32>,
    /// Set to abort the work in flight.
    pub(crate) abort: Arc<AtomicBool>,
}

/// Memory of the device.
pub(crate) struct Region {
    pub(crate) base: u64,
    pub(crate) memory: HostRange,
}

impl Region {
    fn find(&self, address: u64, length: u64) -> Option<HostRange> {
        self.memory.slice(address.checked_sub(self.base)?, length)
    }
}

impl SharedNetwork {
    /// Memory of the network at a device address; nothing, unless the network has all of it.
    pub(crate) fn find(&self, address: u64, length: u64) -> Option<HostRange> {
        self.ddr.find(address, length).or_else(|| self.multicast.find(address, length))
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.abort.load(Ordering::Relaxed)
    }
}

/// The description of a network in its image.
pub(crate) struct Image {
    network: Network,
    program: Program,
    layout: ProgramLayout,
}

impl Image {
    /// Reads an image, or returns the error and its status. An image for real cores is refused.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, (String, Status)> {
        let network = Network::read(bytes).map_err(|error| (error.to_string(), Status::METADATA))?;
        let bad_image = |error: String| (error, Status::IMAGE);
        let program =
            Program::read(bytes).map_err(|error| bad_image(error.to_string()))?.ok_or_else(|| {
                bad_image("a network for real cores; the emulated ones run programs of the host".to_owned())
            })?;
        let layout = program.layout().filter(|layout| layout.length <= network.ddr);
        let layout = layout
            .ok_or_else(|| bad_image("the network has less memory than its program takes".to_owned()))?;
        Ok(Self { network, program, layout })
    }

    /// How much device memory it needs.
    pub(crate) fn memory(&self) -> u64 {
        self.network.ddr
    }

    /// How many cores it needs.
    pub(crate) fn cores(&self) -> u16 {
        self.network.cores.max(1)
    }

    /// How many multicast groups it needs: its doorbells', and one at least.
    pub(crate) fn multicasts(&self) -> u64 {
        let groups = self.network.requests.iter().filter_map(|request| request.doorbell);
        groups.map(|doorbell| u64::from(doorbell.group) + 1).max().unwrap_or(1)
    }

    /// How many semaphores it needs.
    pub(crate) fn semaphores(&self) -> usize {
        self.network.semaphores.len()
    }

    /// Allocates the network's memory, at addresses that no other active network has.
    pub(crate) fn activate(self, number: u32) -> Result<SharedNetwork, Errno> {
        /// The distance between networks: more than any of them needs.
        const APART: u64 = 1 << 40;
        let at = u64::from(number).checked_mul(APART).ok_or(Errno::NOMEM)?;
        let groups = self.multicasts();
        let region = |base: u64, length: u64| {
            let base = at.checked_add(base).ok_or(Errno::NOMEM)?;
            Ok(Region { base, memory: mapped_file("qaic-ddr", length)?.1 })
        };
        Ok(SharedNetwork {
            ddr: region(DDR, self.network.ddr)?,
            multicast: region(MULTICAST, groups.checked_mul(GROUP).ok_or(Errno::NOMEM)?)?,
            semaphores: self.network.semaphores,
            abort: Arc::default(),
            program: self.program,
            layout: self.layout,
        })
    }
}
