// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What a device has, and resource groups: parts of it that a user sets apart.
//!
//! A group takes its resources from the device or from another group of the same user, and gives them back when it is
//! released, or its user is gone. What a group is good for is a device of its own (`PART_DEV`), which upstream's
//! kernel does not have: so nothing is activated within one.

use super::control::{Server, answer, status};
use super::loaded::{UserOwned, own};
use hal_qaic_abi::nnc::command::{
    self, CreateGroupRequest, CreateGroupResponse, ReleaseGroupRequest, ReleaseGroupResponse,
    ResourceInfoRequest, ResourceInfoResponse, Resources, Status, kind,
};
use hal_qaic_abi::nnc::wire::FromDevice;
use hal_qaic_abi::uapi::{CHANNELS, sem};

/// How many multicast groups a device has.
const MULTICASTS: u64 = 1024;

/// How many semaphores a channel has.
const SEMAPHORES: u64 = sem::COUNT as u64;

/// An amount of each resource.
#[derive(Clone, Copy, Default)]
pub(super) struct Amounts {
    /// In bytes.
    pub(super) memory: u64,
    pub(super) cores: u64,
    pub(super) channels: u64,
    pub(super) multicasts: u64,
    pub(super) semaphores: u64,
}

impl Amounts {
    fn combined(self, other: Self, combine: fn(u64, u64) -> u64) -> Self {
        Self {
            memory: combine(self.memory, other.memory),
            cores: combine(self.cores, other.cores),
            channels: combine(self.channels, other.channels),
            multicasts: combine(self.multicasts, other.multicasts),
            semaphores: combine(self.semaphores, other.semaphores),
        }
    }

    /// The first resource that these amounts have too little of.
    pub(super) fn suffice(self, wanted: Self) -> Result<(), Status> {
        let enough = |has: u64, wanted: u64, short: Status| if wanted <= has { Ok(()) } else { Err(short) };
        enough(self.cores, wanted.cores, Status::NO_CORES)?;
        enough(self.memory, wanted.memory, Status::MEMORY)?;
        enough(self.channels, wanted.channels, Status::NO_CHANNEL)?;
        enough(self.semaphores, wanted.semaphores, Status::NO_SEMAPHORES)?;
        enough(self.multicasts, wanted.multicasts, Status::NO_MULTICAST)
    }
}

/// A resource group.
pub(super) struct ResourceGroup {
    owner: u32,
    /// The group that it was taken from; none for the device.
    source: Option<u32>,
    total: Amounts,
}

impl UserOwned for ResourceGroup {
    fn owner(&self) -> u32 {
        self.owner
    }
}

/// A group as requests name it; none for the whole device.
fn named(group: i32) -> Result<Option<u32>, Status> {
    if group == -1 { Ok(None) } else { u32::try_from(group).map(Some).map_err(|_| Status::NOT_FOUND) }
}

impl Server {
    fn total(&self, group: Option<u32>) -> Amounts {
        let device = Amounts {
            memory: self.dram,
            cores: self.cores.into(),
            channels: CHANNELS.into(),
            multicasts: MULTICASTS,
            semaphores: u64::from(CHANNELS) * SEMAPHORES,
        };
        let group =
            group.map(|group| self.groups.get(&group).map_or(Amounts::default(), |group| group.total));
        group.unwrap_or(device)
    }

    /// What is free of the device, or of a group.
    pub(super) fn free(&self, group: Option<u32>) -> Amounts {
        let parts = self.groups.values().filter(|part| part.source == group).map(|part| part.total);
        let used = if group.is_none() { self.used() } else { Amounts::default() };
        let taken = parts.fold(used, |sum, part| sum.combined(part, u64::saturating_add));
        self.total(group).combined(taken, u64::saturating_sub)
    }

    /// The amounts of the device, or of a group, as messages have them.
    pub(super) fn resources(&self, user: u32, group: i32) -> Result<Resources, Status> {
        let group = named(group)?;
        if let Some(group) = group {
            own(self.groups.get(&group), user)?;
        }
        let (total, free) = (self.total(group), self.free(group));
        let mebibytes = |bytes: u64| u32::try_from(bytes >> 20).unwrap_or(u32::MAX).into();
        let few = |number: u64| u8::try_from(number).unwrap_or(u8::MAX);
        let many = |number: u64| u32::try_from(number).unwrap_or(u32::MAX).into();
        Ok(Resources {
            dram_total: mebibytes(total.memory),
            dram_free: mebibytes(free.memory),
            channels_total: few(total.channels),
            channels_free: few(free.channels),
            cores_total: few(total.cores),
            cores_free: few(free.cores),
            multicasts_total: many(total.multicasts),
            multicasts_free: many(free.multicasts),
            semaphores_total: many(total.semaphores),
            semaphores_free: many(free.semaphores),
            ..Resources::default()
        })
    }

    /// The answer to a command about resources and groups. An unknown one has none.
    pub(super) fn about_groups(&mut self, user: u32, what: u32, bytes: &[u8]) -> Option<FromDevice> {
        Some(match what {
            kind::RESOURCE_INFO_REQUEST => {
                let (request, _) = command::read::<ResourceInfoRequest>(bytes).ok()?;
                let result = self.resources(user, request.group.get());
                answer(&ResourceInfoResponse {
                    group: request.group,
                    resources: result.unwrap_or_default(),
                    status: status(result.map(drop)).into(),
                    ..Default::default()
                })
            }
            kind::CREATE_GROUP_REQUEST => {
                let (request, _) = command::read(bytes).ok()?;
                let result = self.create_group(user, &request);
                answer(&CreateGroupResponse {
                    group: result.map_or(-1, u32::cast_signed).into(),
                    status: status(result.map(drop)).into(),
                    ..Default::default()
                })
            }
            kind::RELEASE_GROUP_REQUEST => {
                let (request, _) = command::read::<ReleaseGroupRequest>(bytes).ok()?;
                let result = self.release_group(user, request.group.get());
                answer(&ReleaseGroupResponse { status: status(result).into(), ..Default::default() })
            }
            _ => return None,
        })
    }

    /// Sets resources apart.
    fn create_group(&mut self, user: u32, request: &CreateGroupRequest) -> Result<u32, Status> {
        let source = named(request.source.get())?;
        if let Some(source) = source {
            own(self.groups.get(&source), user)?;
        }
        let sizes = [request.shared_memory.get(), request.l2_memory.get(), request.memory.get()];
        let total = Amounts {
            memory: sizes.iter().fold(0, |sum, &size| u64::saturating_add(sum, size)),
            cores: request.cores.get().into(),
            channels: request.channels.get().into(),
            multicasts: request.multicasts.get().into(),
            semaphores: request.semaphores.get().into(),
        };
        self.free(source).suffice(total)?;
        let number = self.number();
        self.groups.insert(number, ResourceGroup { owner: user, source, total });
        Ok(number)
    }

    /// Gives a group's resources back, unless other groups were made of them.
    fn release_group(&mut self, user: u32, group: i32) -> Result<(), Status> {
        let number = named(group)?.ok_or(Status::NOT_FOUND)?;
        own(self.groups.get(&number), user)?;
        if self.groups.values().any(|part| part.source == Some(number)) {
            return Err(Status::NOT_PERMITTED);
        }
        self.groups.remove(&number);
        Ok(())
    }

    /// What networks and what is loaded for them use of the device.
    fn used(&self) -> Amounts {
        let restarting = self.restarting.map_or(0, |restart| restart.cores.into());
        let mut used = Amounts { memory: self.allocated(), cores: restarting, ..Amounts::default() };
        for active in self.active.values() {
            used.cores += u64::from(active.cores);
            used.multicasts += active.multicasts;
            used.channels += u64::from(active.channel.is_some());
        }
        // Each channel has its own.
        used.semaphores = used.channels * SEMAPHORES;
        used
    }
}
