// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A Vulkan device with its queues, and buffers that the host sees.

use ash::vk;
use hal_semaphore::{Code, Failure};
use parking_lot::Mutex;
use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::Arc;

/// How many `VkQueue`s are used at most.
const MOST_QUEUES: u32 = 4;

/// An open Vulkan device. What is made from it keeps it open.
pub struct Gpu {
    /// The loader stays loaded as long as its functions are called.
    _entry: ash::Entry,
    instance: ash::Instance,
    device: ash::Device,
    name: String,
    family: u32,
    memory: vk::PhysicalDeviceMemoryProperties,
    /// Vulkan wants one thread at a time for each.
    queues: Vec<Mutex<vk::Queue>>,
}

/// A call of Vulkan's has failed.
pub(crate) fn failure(call: &str, result: vk::Result) -> Failure {
    let code = match result {
        vk::Result::ERROR_OUT_OF_HOST_MEMORY | vk::Result::ERROR_OUT_OF_DEVICE_MEMORY => {
            Code::ResourceExhausted
        }
        vk::Result::ERROR_DEVICE_LOST => Code::DataLoss,
        vk::Result::ERROR_INITIALIZATION_FAILED | vk::Result::ERROR_INCOMPATIBLE_DRIVER => Code::Unavailable,
        _ => Code::Internal,
    };
    Failure::new(code, format!("{call} failed: {result}"))
}

/// What is chosen before a device is open.
struct Choice {
    physical: vk::PhysicalDevice,
    name: String,
    family: u32,
    queues: u32,
}

impl Gpu {
    /// Opens the first device of a kind that `accepts` takes, with timeline semaphores and a queue for transfers.
    pub fn open(accepts: impl Fn(vk::PhysicalDeviceType) -> bool) -> Result<Arc<Self>, Failure> {
        // SAFETY: what is loaded is the system's Vulkan loader, and stays loaded as long as `Gpu` is there.
        let entry = unsafe { ash::Entry::load() }.map_err(|error| {
            let advice = "install libvulkan1 and a driver, such as mesa-vulkan-drivers for one in software";
            Failure::new(Code::Unavailable, format!("no Vulkan loader: {error}; {advice}"))
        })?;
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_2);
        let create = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: the structure and what it points to are alive during the call.
        let instance = unsafe { entry.create_instance(&create, None) }
            .map_err(|result| failure("vkCreateInstance", result))?;
        let opened = choose(&instance, accepts).and_then(|choice| {
            let device = create_device(&instance, &choice)?;
            Ok((choice, device))
        });
        match opened {
            Ok((choice, device)) => Ok(Arc::new(Self::with(entry, instance, device, choice))),
            Err(failure) => {
                // SAFETY: nothing made from it is left.
                unsafe { instance.destroy_instance(None) };
                Err(failure)
            }
        }
    }

    fn with(entry: ash::Entry, instance: ash::Instance, device: ash::Device, choice: Choice) -> Self {
        let Choice { physical, name, family, queues } = choice;
        // SAFETY: the physical device is the instance's.
        let memory = unsafe { instance.get_physical_device_memory_properties(physical) };
        // SAFETY: so many queues of the family were asked for as the device was made.
        let queue = |index| Mutex::new(unsafe { device.get_device_queue(family, index) });
        let queues = (0..queues).map(queue).collect();
        Self { _entry: entry, instance, device, name, family, memory, queues }
    }

    /// The device's functions.
    pub fn device(&self) -> &ash::Device {
        &self.device
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many `VkQueue`s it has.
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// The family of its queues.
    pub(crate) fn family(&self) -> u32 {
        self.family
    }

    /// The `VkQueue` behind a queue of the engine, which may be one of several.
    pub(crate) fn queue(&self, index: usize) -> &Mutex<vk::Queue> {
        #[expect(
            clippy::indexing_slicing,
            reason = "there is at least one, and the remainder is below their number"
        )]
        &self.queues[index % self.queues.len()]
    }

    /// A type of memory of these that the host sees without further calls.
    fn host_memory(&self, allowed: u32) -> Option<u32> {
        let wanted = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        let types = self.memory.memory_types_as_slice();
        (0u32..)
            .zip(types)
            .find(|(index, kind)| allowed & (1 << index) != 0 && kind.property_flags.contains(wanted))
            .map(|(index, _)| index)
    }
}

/// Chooses a device and a family of its queues.
fn choose(
    instance: &ash::Instance,
    accepts: impl Fn(vk::PhysicalDeviceType) -> bool,
) -> Result<Choice, Failure> {
    // SAFETY: the instance is alive.
    let devices = unsafe { instance.enumerate_physical_devices() }
        .map_err(|result| failure("vkEnumeratePhysicalDevices", result))?;
    let mut seen = Vec::new();
    for physical in devices {
        // SAFETY: the physical device is the instance's.
        let properties = unsafe { instance.get_physical_device_properties(physical) };
        let name = properties.device_name_as_c_str().map_or("?".into(), CStr::to_string_lossy).into_owned();
        if accepts(properties.device_type)
            && has_timeline_semaphores(instance, physical, properties.api_version)
            && let Some((family, queues)) = transfer_family(instance, physical)
        {
            return Ok(Choice { physical, name, family, queues });
        }
        seen.push(name);
    }
    let message = format!(
        "no Vulkan device of the kind that was asked for has timeline semaphores and queues; there are: {seen:?}; \
         mesa-vulkan-drivers has one in software"
    );
    Err(Failure::new(Code::NotFound, message))
}

fn has_timeline_semaphores(instance: &ash::Instance, physical: vk::PhysicalDevice, version: u32) -> bool {
    if version < vk::API_VERSION_1_2 {
        return false;
    }
    let mut timeline = vk::PhysicalDeviceTimelineSemaphoreFeatures::default();
    let mut features = vk::PhysicalDeviceFeatures2::default().push_next(&mut timeline);
    // SAFETY: the physical device is the instance's, and the chain is alive during the call.
    unsafe { instance.get_physical_device_features2(physical, &mut features) };
    timeline.timeline_semaphore == vk::TRUE
}

/// A family whose queues copy and fill, and how many of them are used.
fn transfer_family(instance: &ash::Instance, physical: vk::PhysicalDevice) -> Option<(u32, u32)> {
    // SAFETY: the physical device is the instance's.
    let families = unsafe { instance.get_physical_device_queue_family_properties(physical) };
    // Vulkan: queues for graphics or compute transfer too.
    let wanted = vk::QueueFlags::COMPUTE | vk::QueueFlags::GRAPHICS;
    (0..)
        .zip(families)
        .find(|(_, family)| family.queue_flags.intersects(wanted) && family.queue_count > 0)
        .map(|(index, family)| (index, family.queue_count.min(MOST_QUEUES)))
}

fn create_device(instance: &ash::Instance, choice: &Choice) -> Result<ash::Device, Failure> {
    let priorities = vec![1.0; choice.queues as usize];
    let queues = [vk::DeviceQueueCreateInfo::default()
        .queue_family_index(choice.family)
        .queue_priorities(&priorities)];
    let mut timeline = vk::PhysicalDeviceTimelineSemaphoreFeatures::default().timeline_semaphore(true);
    let create = vk::DeviceCreateInfo::default().queue_create_infos(&queues).push_next(&mut timeline);
    // SAFETY: the physical device is the instance's, and the structures are alive during the call.
    unsafe { instance.create_device(choice.physical, &create, None) }
        .map_err(|result| failure("vkCreateDevice", result))
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: everything that is made from the device has a counted reference to this, so nothing is left.
        unsafe {
            self.device.destroy_device(None);
            self.instance.destroy_instance(None);
        }
    }
}

/// Words that the device reads and writes, and the host sees.
pub struct Buffer {
    gpu: Arc<Gpu>,
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    words: NonNull<u32>,
    count: usize,
}

// SAFETY: the pointer is to memory of the buffer's own, which is read with volatile accesses alone.
unsafe impl Send for Buffer {}
// SAFETY: as for `Send`; several threads may read.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A buffer of so many words, which are zero.
    pub fn new(gpu: &Arc<Gpu>, count: usize) -> Result<Arc<Self>, Failure> {
        let device = gpu.device();
        let usage = vk::BufferUsageFlags::TRANSFER_SRC | vk::BufferUsageFlags::TRANSFER_DST;
        let create = vk::BufferCreateInfo::default().size(4 * count as u64).usage(usage);
        // SAFETY: the device is alive.
        let buffer = unsafe { device.create_buffer(&create, None) }
            .map_err(|result| failure("vkCreateBuffer", result))?;
        let memory = bind_memory(gpu, buffer, 4 * count);
        match memory {
            Ok((memory, words)) => Ok(Arc::new(Self { gpu: gpu.clone(), buffer, memory, words, count })),
            Err(failure) => {
                // SAFETY: nothing has seen the buffer.
                unsafe { device.destroy_buffer(buffer, None) };
                Err(failure)
            }
        }
    }

    /// Vulkan's handle, for commands.
    pub fn handle(&self) -> vk::Buffer {
        self.buffer
    }

    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        4 * self.count as u64
    }

    /// What is in it: what the work has written whose end the host has waited for.
    pub fn read(&self) -> Vec<u32> {
        // SAFETY: the memory is mapped, and has so many words.
        (0..self.count).map(|index| unsafe { self.words.add(index).read_volatile() }).collect()
    }
}

/// Gives a buffer of so many bytes memory, maps it, and makes it zero.
fn bind_memory(
    gpu: &Gpu,
    buffer: vk::Buffer,
    bytes: usize,
) -> Result<(vk::DeviceMemory, NonNull<u32>), Failure> {
    let device = gpu.device();
    // SAFETY: the buffer is the device's.
    let needs = unsafe { device.get_buffer_memory_requirements(buffer) };
    let kind = gpu.host_memory(needs.memory_type_bits).ok_or_else(|| {
        Failure::new(Code::Unavailable, "the device has no memory that the host sees without further calls")
    })?;
    let allocate = vk::MemoryAllocateInfo::default().allocation_size(needs.size).memory_type_index(kind);
    // SAFETY: the device is alive, and the type is one of its own.
    let memory = unsafe { device.allocate_memory(&allocate, None) }
        .map_err(|result| failure("vkAllocateMemory", result))?;
    let map = || {
        // SAFETY: the memory is large enough for the buffer, which has none yet, and is not mapped yet.
        unsafe {
            device.bind_buffer_memory(buffer, memory, 0)?;
            device.map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty())
        }
    };
    let words = map().map_err(|result| failure("vkMapMemory", result)).and_then(|place| {
        NonNull::new(place.cast::<u32>())
            .ok_or_else(|| Failure::new(Code::Internal, "vkMapMemory mapped nothing"))
    });
    if let Ok(words) = &words {
        // SAFETY: so many bytes are mapped, and nothing else uses them yet.
        unsafe { words.cast::<u8>().write_bytes(0, bytes) };
    }
    if words.is_err() {
        // SAFETY: the caller destroys the buffer, and nothing has used the memory.
        unsafe { device.free_memory(memory, None) };
    }
    Ok((memory, words?))
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let device = self.gpu.device();
        // SAFETY: work that uses the buffer has a counted reference, which the engine keeps until the work has ended.
        unsafe {
            device.destroy_buffer(self.buffer, None);
            device.free_memory(self.memory, None);
        }
    }
}
