// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The devices that programs run on, and the program's own pages and files.

use crate::common::{self, Device, Executable, Tracker, check};
use crate::program::Kernel;
use hal_sys as sys;
use std::alloc::Layout;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The folder and the format of each compiled form of the functions.
const FORMATS: [(&str, &str); 2] = [
    #[cfg(target_arch = "x86_64")]
    ("llvm_cpu", "embedded-elf-x86_64"),
    #[cfg(target_arch = "aarch64")]
    ("llvm_cpu", "embedded-elf-arm_64"),
    ("vmvx", "vmvx-bytecode-fb"),
];

/// The same for NVIDIA's cards: one format, which has two names.
const CUDA_FORMATS: [(&str, &str); 2] = [("cuda_sm80", "PTXE"), ("cuda_sm60", "cuda-nvptx-fb")];

const ALIGNMENT: usize = 4096;

/// Devices in one group, and the functions, loaded on each.
pub(crate) struct Machine {
    pub(crate) devices: Vec<Device>,
    uris: Vec<String>,
    /// By device, executable and format.
    pub(crate) kernels: Vec<Vec<[Executable; 2]>>,
    group: *mut sys::iree_hal_device_group_t,
}

unsafe impl Send for Machine {}
unsafe impl Sync for Machine {}

impl Machine {
    pub(crate) fn open(uris: &[&str]) -> common::Result<Arc<Self>> {
        static MACHINES: AtomicUsize = AtomicUsize::new(40_000);
        let uris: Vec<String> = uris
            .iter()
            .map(|uri| uri.replace('@', &MACHINES.fetch_add(1, Ordering::Relaxed).to_string()))
            .collect();
        let devices = uris.iter().map(|uri| Device::open(uri)).collect::<common::Result<Vec<_>>>()?;
        let group = Tracker::new().group_of(&devices.iter().collect::<Vec<_>>())?;
        let kernels = devices.iter().zip(&uris).map(|(device, uri)| load(device, uri));
        let kernels = kernels.collect::<common::Result<_>>()?;
        Ok(Arc::new(Self { devices, uris, kernels, group }))
    }

    fn is_iree(&self, device: usize) -> bool {
        self.uris[device].starts_with("local-")
    }

    /// IREE's own driver has one queue, and does not fold affinities.
    pub(crate) fn affinity(&self, device: usize, affinity: u64) -> u64 {
        if self.is_iree(device) { u64::MAX } else { affinity }
    }

    /// True for IREE's own driver, which refuses an operation whose wait has failed already; the test then fails
    /// its signals.
    pub(crate) fn refuses_late(&self, device: usize) -> bool {
        self.is_iree(device)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kernels.clear();
        self.devices.clear();
        unsafe { sys::iree_hal_device_group_release(self.group) };
    }
}

fn load(device: &Device, uri: &str) -> common::Result<Vec<[Executable; 2]>> {
    let formats = if uri.starts_with("nvidia") { CUDA_FORMATS } else { FORMATS };
    Kernel::MODULES
        .iter()
        .map(|module| {
            let [one, other] = formats.map(|(folder, format)| {
                device.load(format, &common::testdata(&format!("{folder}/{module}.bin")))
            });
            Ok([one?, other?])
        })
        .collect()
}

/// Memory of the program, at the beginning of a page.
pub(crate) struct Pages(pub(crate) *mut u8, Layout);

impl Pages {
    pub(crate) fn with(bytes: &[u8]) -> Self {
        let layout = Layout::from_size_align(bytes.len().max(1), ALIGNMENT).unwrap();
        unsafe {
            let pages = Self(std::alloc::alloc_zeroed(layout), layout);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), pages.0, bytes.len());
            pages
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        unsafe { std::alloc::dealloc(self.0, self.1) };
    }
}

enum Bytes {
    Descriptor(std::fs::File),
    Memory(Pages),
}

/// A file, and each device's handle on it.
pub(crate) struct File {
    bytes: Bytes,
    length: usize,
    handle: *mut sys::iree_io_file_handle_t,
    pub(crate) imported: Vec<*mut sys::iree_hal_file_t>,
}

impl File {
    pub(crate) fn with(bytes: &[u8], in_memory: bool, devices: &[Device]) -> common::Result<Self> {
        let access = sys::IREE_IO_FILE_ACCESS_READ | sys::IREE_IO_FILE_ACCESS_WRITE;
        let (allocator, release) = (unsafe { sys::iree_allocator_system() }, Default::default());
        let mut handle = null_mut();
        let length = bytes.len();
        let bytes = if in_memory {
            let pages = Pages::with(bytes);
            let span = sys::iree_byte_span_t { data: pages.0, data_length: length };
            check(unsafe {
                sys::iree_io_file_handle_wrap_host_allocation(
                    access,
                    span,
                    release,
                    allocator,
                    &raw mut handle,
                )
            })?;
            Bytes::Memory(pages)
        } else {
            use std::os::fd::AsRawFd;
            let file = unnamed(bytes);
            let primitive = sys::iree_io_file_handle_primitive_t {
                type_: sys::IREE_IO_FILE_HANDLE_TYPE_FD,
                value: sys::iree_io_file_handle_primitive_value_t { fd: file.as_raw_fd() },
            };
            check(unsafe {
                sys::iree_io_file_handle_wrap(access, 0, primitive, release, allocator, &raw mut handle)
            })?;
            Bytes::Descriptor(file)
        };
        let mut file = Self { bytes, length, handle, imported: Vec::new() };
        for device in devices {
            let access = sys::IREE_HAL_MEMORY_ACCESS_READ | sys::IREE_HAL_MEMORY_ACCESS_WRITE;
            let mut imported = null_mut();
            check(unsafe {
                sys::iree_hal_file_import(device.0, u64::MAX, access as u16, handle, 0, &raw mut imported)
            })?;
            file.imported.push(imported);
        }
        Ok(file)
    }

    pub(crate) fn read(&self) -> Vec<u8> {
        match &self.bytes {
            Bytes::Memory(pages) => unsafe { std::slice::from_raw_parts(pages.0, self.length) }.to_vec(),
            Bytes::Descriptor(file) => {
                use std::os::unix::fs::FileExt;
                let mut bytes = vec![0; self.length];
                file.read_exact_at(&mut bytes, 0).unwrap();
                bytes
            }
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        unsafe {
            for file in self.imported.drain(..) {
                sys::iree_hal_file_release(file);
            }
            sys::iree_io_file_handle_release(self.handle);
        }
    }
}

/// A file that is deleted with its descriptor.
fn unnamed(bytes: &[u8]) -> std::fs::File {
    use std::io::Write;
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let name = format!("hal-programs-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name);
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.write_all(bytes).unwrap();
    file
}
