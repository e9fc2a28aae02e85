// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Channels: IREE's objects for a rank of a group that does collectives.
//!
//! A channel is a counted object around one rank's [`Communicator`]. A compiled module creates a channel in every
//! call, so creating one is a table lookup: the group lives as long as any channel to it or any work in it.
//!
//! # Which rank
//!
//! The program's own rank and count come first. What the program leaves open comes from the first source that has
//! it:
//!
//! 1. the device's URI (`collective_rank`, `collective_count`),
//! 2. the channel provider that the program gave the device,
//! 3. the MPI job, if a launcher started this process beside others,
//! 4. the device group, if it has several devices: one rank each,
//! 5. otherwise the device is alone.
//!
//! A group is identified by the id and the group name that the program gives, or without an id by the source of its
//! ranks. A group of a job's processes is carried by MPI; every other group is within this process. Ranks of any
//! other provider first exchange an id, as IREE's interface requires.

use crate::command::executable::{DeviceIdentity, is_same_device};
use crate::ffi::object::{Borrowed, Header, HostAllocator, Out, allocate, free, resource, slice};
use crate::ffi::status::{Result, check, guard, guard_or, invalid};
use crate::launcher_rank;
use hal_backend::Parameters;
use hal_collectives::local::{Request, join};
use hal_collectives::{Check, Communicator, Terms};
use hal_semaphore::{Code, Failure};
use hal_sys as sys;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::ThreadId;
use std::time::Duration;

/// The default of `collective_timeout`: how long an operation waits for ranks that do not come.
const TIMEOUT: Duration = Duration::from_secs(600);

/// The default of `collective_piece`.
#[expect(clippy::cast_possible_truncation, reason = "a small number")]
const PIECE: u32 = hal_collectives::PIECE as u32;

/// IREE's `IREE_HAL_CHANNEL_NO_COLOR`: the rank is in no part of the group.
const NO_COLOR: i32 = -1;

/// IREE's `IREE_HAL_CHANNEL_RANK_DEFAULT` and `_COUNT_DEFAULT`: left open.
const DEFAULT: i32 = -1;

/// The bytes of an exchanged id: as many as IREE's providers support.
const ID_BYTES: usize = 128;

/// The settings of a device's URI for collectives: its rank, the number of ranks, and timeouts.
#[derive(Clone)]
pub(crate) struct CollectiveSettings {
    place: Option<(u32, u32)>,
    terms: Terms,
}

impl CollectiveSettings {
    pub(crate) fn take(parameters: &mut Parameters<'_>) -> Result<Self> {
        let most = i32::MAX.unsigned_abs();
        let count = parameters.number("collective_count", 0, 1, most)?;
        let rank = parameters.number("collective_rank", u32::MAX, 0, most)?;
        let place = match (rank, count) {
            (u32::MAX, 0) => None,
            (u32::MAX, _) => {
                return Err(parameters.refuse("collective_count", "needs collective_rank too"));
            }
            (_, 0) => return Err(parameters.refuse("collective_rank", "needs collective_count too")),
            (rank, count) if rank >= count => {
                let why =
                    format!("is {rank}; with collective_count={count} the ranks are 0 to {}", count - 1);
                return Err(parameters.refuse("collective_rank", &why));
            }
            place => Some(place),
        };
        let timeout = parameters.take("collective_timeout")?.map(|seconds| {
            let number = seconds.parse::<f64>().ok().filter(|seconds| (0.001..=1e6).contains(seconds));
            number.map(Duration::from_secs_f64).ok_or_else(|| {
                let why = format!("is {seconds:?}; it takes a number of seconds from 0.001 to 1000000");
                parameters.refuse("collective_timeout", &why)
            })
        });
        let piece = parameters.number("collective_piece", PIECE, 1, 1 << 30)?;
        let check = match parameters.take("collective_check")? {
            None | Some("first") => Check::First,
            Some("on") => Check::On,
            Some("off") => Check::Off,
            Some(other) => {
                let why = format!("is {other:?}; it takes on, first or off");
                return Err(parameters.refuse("collective_check", &why));
            }
        };
        let terms = Terms { timeout: timeout.transpose()?.unwrap_or(TIMEOUT), piece: piece.into(), check };
        Ok(Self { place, terms })
    }
}

/// A group of several devices, and one device's rank in it.
#[derive(Clone)]
struct DeviceGroup {
    name: Arc<GroupIdentity>,
    rank: u32,
    count: u32,
}

/// The identity that the devices of a group share. IREE's groups have none, and a new group may reuse the address
/// of a released one while channels to the old one still exist.
struct GroupIdentity {
    number: u64,
    /// The ranks that have joined.
    ranks: Mutex<BTreeSet<u32>>,
}

/// The addresses of a group's topology and tracker. Two live groups never share both.
type GroupAddress = [usize; 2];

/// The groups that devices are in.
static IDENTITIES: Mutex<BTreeMap<GroupAddress, Weak<GroupIdentity>>> = Mutex::new(BTreeMap::new());

/// The identity of the group at an address. Each rank joins once, so a rank that has joined already means a new
/// group.
fn identity_at(place: GroupAddress, rank: u32) -> Arc<GroupIdentity> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut names = IDENTITIES.lock();
    names.retain(|_, name| name.strong_count() > 0);
    let known = names.get(&place).and_then(Weak::upgrade).filter(|name| name.ranks.lock().insert(rank));
    known.unwrap_or_else(|| {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = Arc::new(GroupIdentity { number, ranks: Mutex::new(BTreeSet::from([rank])) });
        names.insert(place, Arc::downgrade(&name));
        name
    })
}

/// The groups that a device is a rank of.
pub(crate) struct Ranks {
    membership: CollectiveSettings,
    groups: Mutex<JoinedGroups>,
    exchange: Mutex<IdExchange>,
    /// Signalled when an exchange ends.
    exchanged: Condvar,
}

/// The device groups that decide the device's rank.
#[derive(Default)]
struct JoinedGroups {
    current: Option<DeviceGroup>,
    /// The group before the last join.
    before: Option<DeviceGroup>,
}

/// The id that the provider's ranks share.
#[derive(Default)]
enum IdExchange {
    #[default]
    None,
    /// This thread is inside the provider, with no lock held, since the provider may do anything.
    Going(ThreadId),
    Known(Box<[u8]>),
}

/// The parameters of a new channel.
struct ChannelRank {
    rank: u32,
    count: u32,
    id: Vec<u8>,
    /// True if the ranks may be the processes of a job.
    is_job: bool,
}

impl Ranks {
    pub(crate) fn new(membership: CollectiveSettings) -> Self {
        let (groups, exchange, exchanged) = (Mutex::default(), Mutex::default(), Condvar::new());
        Self { membership, groups, exchange, exchanged }
    }

    /// Records that the device joined a group. A group of one device, such as every session of IREE's runtime
    /// makes, changes nothing.
    ///
    /// # Safety
    ///
    /// The topology of the information is alive for the call, or null.
    pub(crate) unsafe fn join(&self, info: &sys::iree_hal_device_topology_info_t) {
        let mut groups = self.groups.lock();
        groups.before = groups.current.clone();
        // SAFETY: the topology is alive for the call or null, as the function asks.
        let topology = unsafe { info.topology.as_ref() };
        if let Some(topology) = topology.filter(|topology| topology.device_count > 1) {
            let place = [std::ptr::from_ref(topology).addr(), info.frontier.tracker.addr()];
            let (rank, count) = (info.topology_index, topology.device_count);
            groups.current = Some(DeviceGroup { name: identity_at(place, rank), rank, count });
        }
    }

    /// Undoes the last join, when that group could not be built.
    pub(crate) fn leave(&self) {
        let mut groups = self.groups.lock();
        groups.current = groups.before.clone();
    }

    /// Forgets the exchanged id, because the program set another provider.
    pub(crate) fn forget_provider(&self) {
        *self.exchange.lock() = IdExchange::None;
    }

    /// Creates a channel from C's parameters. The caller owns it.
    ///
    /// # Safety
    ///
    /// Everything that the parameters name is valid for the call.
    pub(crate) unsafe fn create(
        &self,
        provider: Option<Borrowed<'_, sys::iree_hal_channel_provider_t>>,
        device: &DeviceIdentity,
        params: &sys::iree_hal_channel_params_t,
        allocator: HostAllocator,
    ) -> Result<*mut sys::iree_hal_channel_t> {
        if params.flags != 0 {
            return Err(invalid(format!("a channel has no flags {:#x}", params.flags)));
        }
        // SAFETY: valid for the call, as the caller promises.
        let (id, group) = unsafe {
            let group = slice(params.group.data.cast::<u8>(), params.group.size)?;
            (slice(params.id.data, params.id.data_length)?, group)
        };
        let mut place = self.place(provider, device, id, (params.rank, params.count))?;
        place.id.extend_from_slice(group);
        // The program's group name may be any bytes.
        let name = &String::from_utf8_lossy(group);
        let terms = self.membership.terms;
        // A group of another size is within this process and needs no MPI.
        let ChannelRank { rank, count, id, is_job } = &place;
        let (rank, count, owner) = (*rank, *count, Arc::as_ptr(device).addr());
        if *is_job && hal_collectives_mpi::can_be_job(count) && rank < count {
            let (own, all) = hal_collectives_mpi::place()?;
            if (own, all) == (rank, count) {
                let communicator = hal_collectives_mpi::join_as(owner, id, name, terms)?;
                return Channel::create(Arc::from(communicator), device.clone(), allocator);
            }
            if all == count {
                return Err(invalid(format!(
                    "rank {rank} of the group {name:?} belongs to another process: a group of {count} ranks is \
                     the whole job, in which this process is rank {own}; for a group of this process's devices, \
                     give their ranks in their URIs (collective_rank and collective_count)"
                )));
            }
        }
        let request = Request { id, name, rank, count, owner, terms };
        Channel::create(Arc::from(join(&request)?), device.clone(), allocator)
    }

    /// The rank, the count and the beginning of the group's id, with defaults for what C leaves open.
    fn place(
        &self,
        provider: Option<Borrowed<'_, sys::iree_hal_channel_provider_t>>,
        device: &DeviceIdentity,
        id: &[u8],
        (rank, count): (i32, i32),
    ) -> Result<ChannelRank> {
        let given = |number: i32, what: &str| match number {
            DEFAULT => Ok(None),
            number => u32::try_from(number).map(Some).map_err(|_| {
                invalid(format!(
                    "a channel's {what} is {number}; it takes a number from 0, or -1 for the default"
                ))
            }),
        };
        let (rank, count) = (given(rank, "rank")?, given(count, "count")?);
        let named = (!id.is_empty()).then(|| key(b'i', id));
        let launched = hal_collectives_mpi::is_launched();
        if let (Some(rank), Some(count), Some(id)) = (rank, count, &named) {
            return Ok(ChannelRank { rank, count, id: id.clone(), is_job: launched });
        }
        let group = self.groups.lock().current.clone();
        let mut place = if let Some((rank, count)) = self.membership.place {
            ChannelRank { rank, count, id: key(b'u', &[]), is_job: false }
        } else if let Some((provider, (rank, count))) = query_provider(provider)? {
            launcher_rank::check_place((rank, count))?;
            let id = match &named {
                None if !launched => self.exchange(provider, rank)?,
                _ => key(b'j', &[]),
            };
            ChannelRank { rank, count, id, is_job: launched }
        } else if launched {
            let (rank, count) = hal_collectives_mpi::place()?;
            ChannelRank { rank, count, id: key(b'j', &[]), is_job: true }
        } else if let Some(DeviceGroup { name, rank, count }) = group {
            ChannelRank { rank, count, id: key(b'g', &name.number.to_ne_bytes()), is_job: false }
        } else {
            let id = key(b'd', &Arc::as_ptr(device).addr().to_ne_bytes());
            ChannelRank { rank: 0, count: 1, id, is_job: false }
        };
        // A rank and a count from the program make a group of their own, whatever the default is.
        place.rank = rank.unwrap_or(place.rank);
        if let Some(count) = count.filter(|&count| count != place.count) {
            place.count = count;
            place.id = key(b'c', &[]);
            place.is_job = false;
        }
        place.id = named.unwrap_or(place.id);
        Ok(place)
    }

    /// The id that the provider's ranks share, exchanged once.
    fn exchange(
        &self,
        provider: Borrowed<'_, sys::iree_hal_channel_provider_t>,
        rank: u32,
    ) -> Result<Vec<u8>> {
        let this = std::thread::current().id();
        let mut exchange = self.exchange.lock();
        loop {
            match &*exchange {
                IdExchange::Known(id) => return Ok(id.to_vec()),
                IdExchange::Going(thread) if *thread == this => {
                    let message = "the channel provider creates a channel of the device while it exchanges the \
                                   id of the device's ranks; give that channel an id, a rank and a count";
                    return Err(Failure::new(Code::FailedPrecondition, message));
                }
                IdExchange::Going(_) => self.exchanged.wait(&mut exchange),
                IdExchange::None => break,
            }
        }
        *exchange = IdExchange::Going(this);
        drop(exchange);
        let id = exchanged_by(provider, rank);
        let known = id.as_ref().map_or(IdExchange::None, |id| IdExchange::Known(id.as_slice().into()));
        *self.exchange.lock() = known;
        self.exchanged.notify_all();
        id
    }
}

/// Exchanges the first rank's id through the provider.
fn exchanged_by(provider: Borrowed<'_, sys::iree_hal_channel_provider_t>, rank: u32) -> Result<Vec<u8>> {
    let mut id = [0_u8; ID_BYTES];
    if rank == 0 {
        fresh(&mut id);
    }
    let span = sys::iree_byte_span_t { data: id.as_mut_ptr(), data_length: id.len() };
    // SAFETY: the provider is borrowed, and the bytes live through the call.
    unsafe { check(sys::iree_hal_channel_provider_exchange_default_id(provider.get(), span))? };
    Ok(key(b'p', &id))
}

/// The first bytes of an id: its source, its length, its content.
fn key(source: u8, id: &[u8]) -> Vec<u8> {
    let mut key = vec![source];
    key.extend_from_slice(&id.len().to_le_bytes());
    key.extend_from_slice(id);
    key
}

/// Fills in an id that no other group of any process has.
fn fresh(id: &mut [u8; ID_BYTES]) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos());
    let process = u128::from(std::process::id()) << 64 | u128::from(NEXT.fetch_add(1, Ordering::Relaxed));
    let words = since.to_le_bytes().into_iter().chain(process.to_le_bytes());
    for (byte, word) in id.iter_mut().zip(words) {
        *byte = word;
    }
}

type ProvidedRank<'a> = (Borrowed<'a, sys::iree_hal_channel_provider_t>, (u32, u32));

/// The provider and the rank that it gives, if any.
fn query_provider(
    provider: Option<Borrowed<'_, sys::iree_hal_channel_provider_t>>,
) -> Result<Option<ProvidedRank<'_>>> {
    let Some(provider) = provider else { return Ok(None) };
    let (mut rank, mut count) = (DEFAULT, DEFAULT);
    // SAFETY: the provider is borrowed, and the answers are ours.
    unsafe {
        check(sys::iree_hal_channel_provider_query_default_rank_and_count(
            provider.get(),
            &raw mut rank,
            &raw mut count,
        ))?;
    }
    if (rank, count) == (DEFAULT, DEFAULT) {
        return Ok(None);
    }
    match (u32::try_from(rank), u32::try_from(count)) {
        (Ok(rank), Ok(count)) => Ok(Some((provider, (rank, count)))),
        _ => Err(invalid(format!(
            "the device's channel provider answered rank {rank} of {count}; it may answer a rank from 0 and a \
             count, or -1 for both if it has none"
        ))),
    }
}

/// A channel of ours.
#[repr(C)]
pub(crate) struct Channel {
    resource: Header,
    allocator: HostAllocator,
    device: DeviceIdentity,
    communicator: Arc<dyn Communicator>,
}

impl Channel {
    fn create(
        communicator: Arc<dyn Communicator>,
        device: DeviceIdentity,
        allocator: HostAllocator,
    ) -> Result<*mut sys::iree_hal_channel_t> {
        let channel = Self { resource: resource(&raw const VTABLE), allocator, device, communicator };
        Ok(allocate(allocator, channel)?.as_ptr().cast())
    }

    /// # Safety
    ///
    /// The channel is one of ours and alive for `'a`.
    unsafe fn of<'a>(channel: *const sys::iree_hal_channel_t) -> &'a Self {
        // SAFETY: ours and alive, as the caller promises.
        unsafe { &*channel.cast::<Self>() }
    }

    /// The communicator of a channel of this device.
    ///
    /// # Safety
    ///
    /// The channel is alive, or null.
    pub(crate) unsafe fn communicator_of(
        channel: *mut sys::iree_hal_channel_t,
        device: &DeviceIdentity,
    ) -> Result<Arc<dyn Communicator>> {
        // SAFETY: the channel is alive or null, as the function asks; null is refused, and every HAL object begins
        // with the resource header.
        let vtable = unsafe {
            Borrowed::required(channel, "a collective needs a channel")?;
            (*channel.cast::<sys::iree_hal_resource_t>()).vtable
        };
        if !std::ptr::eq(vtable.cast(), &raw const VTABLE) {
            return Err(invalid("the channel belongs to another driver"));
        }
        // SAFETY: only `create` makes channels with this table.
        let channel = unsafe { Self::of(channel) };
        if !is_same_device(&channel.device, device) {
            return Err(invalid("the channel belongs to another device than the command buffer"));
        }
        Ok(channel.communicator.clone())
    }
}

static VTABLE: sys::iree_hal_channel_vtable_t = sys::iree_hal_channel_vtable_t {
    destroy: Some(destroy),
    split: Some(split),
    query_rank_and_count: Some(query_rank_and_count),
};

unsafe extern "C" fn destroy(channel: *mut sys::iree_hal_channel_t) {
    guard_or((), || {
        let object = channel.cast::<Channel>();
        // SAFETY: the last reference is gone.
        unsafe {
            let allocator = (*object).allocator;
            free(allocator, object);
        }
    });
}

unsafe extern "C" fn split(
    base: *mut sys::iree_hal_channel_t,
    color: i32,
    key: i32,
    flags: sys::iree_hal_channel_flags_t,
    out: *mut *mut sys::iree_hal_channel_t,
) -> sys::iree_status_t {
    guard(|| {
        // SAFETY: C passes a live channel of ours and where the result goes.
        let (base, out) = unsafe { (Channel::of(base), Out::new(out)) };
        if flags != 0 {
            return Err(invalid(format!("a channel has no flags {flags:#x}")));
        }
        let color = match color {
            NO_COLOR => None,
            color => Some(u32::try_from(color).map_err(|_| {
                invalid(format!("the color is {color}; it takes a number from 0, or -1 for none"))
            })?),
        };
        out.set(match base.communicator.split(color, key)? {
            Some(part) => Channel::create(Arc::from(part), base.device.clone(), base.allocator)?,
            None => std::ptr::null_mut(),
        });
        Ok(())
    })
}

unsafe extern "C" fn query_rank_and_count(
    channel: *const sys::iree_hal_channel_t,
    out_rank: *mut i32,
    out_count: *mut i32,
) {
    // A channel that is still being agreed on and never finishes has no rank; its collectives say why.
    let (rank, count) = guard_or((-1, -1), || {
        // SAFETY: C passes a live channel of ours.
        let place = unsafe { Channel::of(channel) }.communicator.place();
        let number = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
        place.map_or((-1, -1), |(rank, count)| (number(rank), number(count)))
    });
    // SAFETY: C passes where the answers go.
    unsafe {
        Out::new(out_rank).set(rank);
        Out::new(out_count).set(count);
    }
}
