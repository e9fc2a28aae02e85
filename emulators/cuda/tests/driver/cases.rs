// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What functions do.

use crate::library::{Library, TEXT, call};
use std::ffi::{CStr, CString, c_char, c_void};

pub(crate) fn addresses(library: &Library) {
    let find = |name: &str, version: i32| {
        let name = CString::new(name).expect("a text");
        let mut address = std::ptr::null::<c_void>();
        let mut status = 9_i32;
        let result =
            call!(library, cuGetProcAddress_v2(name.as_ptr(), &mut address, version, 0, &mut status));
        assert_eq!(result, 0);
        let mut same = std::ptr::null::<c_void>();
        let old = call!(library, cuGetProcAddress(name.as_ptr(), &mut same, version, 0));
        assert_eq!((old, same), (if status == 0 { 0 } else { 500 }, address));
        (address, status)
    };
    // A name stands for its newest form that the version has.
    for (name, version, symbol) in [
        ("cuInit", 11030, "cuInit"),
        ("cuCtxCreate", 11030, "cuCtxCreate_v2"),
        ("cuCtxCreate", 12000, "cuCtxCreate_v3"),
        ("cuCtxCreate", 12090, "cuCtxCreate_v4"),
        ("cuMemAlloc", 11030, "cuMemAlloc_v2"),
        ("cuStreamWriteValue64", 11030, "cuStreamWriteValue64"),
        ("cuStreamWriteValue64", 12000, "cuStreamWriteValue64_v2"),
        ("cuGraphInstantiate", 11030, "cuGraphInstantiate_v2"),
        ("cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags"),
        ("cuGetProcAddress", 12000, "cuGetProcAddress_v2"),
        ("cuMemcpyAsync_ptsz", 12000, "cuMemcpyAsync_ptsz"),
        ("cuMemFree_v2", 12000, "cuMemFree_v2"),
    ] {
        assert_eq!(find(name, version), (library.address(symbol), 0), "{name} {version}");
    }
    assert_eq!(find("cuFrobnicate", 12000), (std::ptr::null(), 1));
    assert_eq!(find("cuMemAllocAsync", 11000), (std::ptr::null(), 2));
    let mut version = 0;
    assert_eq!(call!(library, cuDriverGetVersion(&mut version)), 0);
    assert!(version >= 12000);
    let mut name = std::ptr::null::<c_char>();
    assert_eq!(call!(library, cuGetErrorName(700, &mut name)), 0);
    // SAFETY: the library's own text.
    assert_eq!(unsafe { CStr::from_ptr(name) }, c"CUDA_ERROR_ILLEGAL_ADDRESS");
    assert_eq!(call!(library, cuGetErrorName(12345, &mut name)), 1);
}

pub(crate) fn attributes(library: &Library) {
    let mut count = 0_i32;
    assert_eq!(call!(library, cuDeviceGetCount(&mut count)), 3);
    library.control("devices=2");
    assert_eq!(call!(library, cuInit(1)), 1);
    assert_eq!(call!(library, cuInit(0)), 0);
    assert_eq!(call!(library, cuDeviceGetCount(&mut count)), 0);
    assert_eq!(count, 2);
    let mut device = 7_i32;
    assert_eq!(call!(library, cuDeviceGet(&mut device, 1)), 0);
    assert_eq!(device, 1);
    assert_eq!(call!(library, cuDeviceGet(&mut device, 2)), 101);
    // Those that exist have a value, others are refused.
    for attribute in 1..=143 {
        let mut value = -1_i32;
        assert_eq!(call!(library, cuDeviceGetAttribute(&mut value, attribute, 0)), 0, "{attribute}");
        assert!(value >= 0, "{attribute}");
    }
    let mut value = 0_i32;
    assert_eq!(call!(library, cuDeviceGetAttribute(&mut value, 0, 0)), 1);
    assert_eq!(call!(library, cuDeviceGetAttribute(&mut value, 10, 0)), 0);
    assert_eq!(value, 32);
    let mut uuids = [[0_u8; 16]; 2];
    for (device, uuid) in (0..).zip(&mut uuids) {
        assert_eq!(call!(library, cuDeviceGetUuid_v2(uuid, device)), 0);
    }
    assert_ne!(uuids[0], uuids[1]);
    let mut name: [c_char; 8] = [1; 8];
    assert_eq!(call!(library, cuDeviceGetName(name.as_mut_ptr(), 8, 0)), 0);
    assert_eq!(name[7], 0);
    let mut bytes = 0_usize;
    assert_eq!(call!(library, cuDeviceTotalMem_v2(&mut bytes, 0)), 0);
    assert_eq!(bytes, 4 << 30);
}

pub(crate) fn contexts(library: &Library) {
    assert_eq!(call!(library, cuInit(0)), 0);
    let mut address = 0_u64;
    assert_eq!(call!(library, cuMemAlloc_v2(&mut address, 16)), 201);
    assert_eq!(library.count("no-context"), 1);
    let (mut first, mut second, mut current) = (0_u64, 0_u64, 9_u64);
    assert_eq!(call!(library, cuCtxCreate_v2(&mut first, 0, 0)), 0);
    assert_eq!(call!(library, cuCtxCreate_v2(&mut second, 0, 0)), 0);
    assert_eq!(call!(library, cuCtxGetCurrent(&mut current)), 0);
    assert_eq!(current, second);
    assert_eq!(call!(library, cuCtxPushCurrent_v2(first)), 0);
    assert_eq!(call!(library, cuCtxPopCurrent_v2(&mut current)), 0);
    assert_eq!(current, first);
    assert_eq!(call!(library, cuCtxSetCurrent(first)), 0);
    // A thread has contexts of its own.
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut current = 9_u64;
            assert_eq!(call!(library, cuCtxGetCurrent(&mut current)), 0);
            assert_eq!(current, 0);
            assert_eq!(call!(library, cuCtxSynchronize()), 201);
            assert_eq!(call!(library, cuCtxSetCurrent(first)), 0);
            call!(library, cuCtxSynchronize())
        });
        assert_eq!(other.join().expect("no panic"), 0);
    });
    let (mut primary, mut again) = (0_u64, 0_u64);
    assert_eq!(call!(library, cuDevicePrimaryCtxRetain(&mut primary, 0)), 0);
    assert_eq!(call!(library, cuDevicePrimaryCtxRetain(&mut again, 0)), 0);
    assert_eq!(primary, again);
    assert_eq!(call!(library, cuCtxDestroy_v2(primary)), 400);
    assert_eq!(call!(library, cuDevicePrimaryCtxRelease_v2(0)), 0);
    assert_eq!(call!(library, cuDevicePrimaryCtxRelease_v2(0)), 0);
    assert_eq!(call!(library, cuDevicePrimaryCtxRelease_v2(0)), 201);
    assert_eq!(call!(library, cuCtxDestroy_v2(first)), 0);
    assert_eq!(call!(library, cuCtxSetCurrent(first)), 201);
    assert_eq!(call!(library, cuCtxDestroy_v2(second)), 0);
}

pub(crate) fn memory(library: &Library) {
    library.begin();
    let device = library.allocate(1000);
    assert_eq!(device % 256, 0);
    let host = library.pinned(64);
    let mut managed = 0_u64;
    assert_eq!(call!(library, cuMemAllocManaged(&mut managed, 64, 1)), 0);
    let attribute = |address: u64, attribute: i32| {
        let mut value = 0_u64;
        let result = call!(library, cuPointerGetAttribute(&mut value, attribute, address));
        (result, value)
    };
    let host_address = host.expose_provenance() as u64;
    assert_eq!(attribute(device + 4, 2), (0, 2));
    assert_eq!(attribute(host_address, 2), (0, 1));
    assert_eq!(attribute(device + 4, 11), (0, device));
    assert_eq!(attribute(device + 4, 12), (0, 1000));
    assert_eq!(attribute(managed, 8), (0, 1));
    assert_eq!(attribute(0x1234, 2).0, 1);
    let mut mapped = 0_u64;
    assert_eq!(call!(library, cuMemHostGetDevicePointer_v2(&mut mapped, host, 0)), 0);
    assert_eq!(mapped, host_address);
    let (mut base, mut size) = (0_u64, 0_usize);
    assert_eq!(call!(library, cuMemGetAddressRange_v2(&mut base, &mut size, device + 999)), 0);
    assert_eq!((base, size), (device, 1000));
    let (mut free, mut total) = (0_usize, 0_usize);
    assert_eq!(call!(library, cuMemGetInfo_v2(&mut free, &mut total)), 0);
    assert_eq!(total - free, 1064);
    let mut large = 0_u64;
    assert_eq!(call!(library, cuMemAlloc_v2(&mut large, 8_usize << 30)), 2);
    assert_eq!(call!(library, cuMemAlloc_v2(&mut large, 0)), 1);
    assert_eq!(call!(library, cuMemFree_v2(device)), 0);
    assert_eq!(call!(library, cuMemFree_v2(managed)), 0);
    assert_eq!(call!(library, cuMemFreeHost(host)), 0);
    // An address is used once.
    assert!(library.allocate(1000) > device);
}

pub(crate) fn modules(library: &Library) {
    library.begin();
    let module = library.module();
    let mut function = 0_u64;
    let find = |function: &mut u64, name: &CStr| {
        call!(library, cuModuleGetFunction(function, module, name.as_ptr()))
    };
    assert_eq!(find(&mut function, c"add"), 0);
    let first = function;
    assert_eq!(find(&mut function, c"add"), 0);
    assert_eq!(function, first);
    assert_eq!(find(&mut function, c"other"), 500);
    let (mut address, mut size) = (0_u64, 0_usize);
    let name = c"factor";
    assert_eq!(call!(library, cuModuleGetGlobal_v2(&mut address, &mut size, module, name.as_ptr())), 0);
    assert_eq!((size, library.words(address, 1)), (4, vec![3]));
    let mut value = 0_i32;
    assert_eq!(call!(library, cuFuncGetAttribute(&mut value, 0, first)), 0);
    assert_eq!(value, 64);
    assert_eq!(call!(library, cuFuncSetAttribute(first, 8, 163 << 10)), 0);
    assert_eq!(call!(library, cuFuncSetAttribute(first, 8, 200 << 10)), 1);
    // What is refused is said in the log.
    let text = CString::new(TEXT.replace("mad.lo.s32", "frobnicate.s32")).expect("a text");
    let mut log = [1_u8; 100];
    let options = [5_i32, 6];
    let values = [log.as_mut_ptr(), std::ptr::without_provenance_mut(log.len())];
    let mut wrong = 0_u64;
    let (options, values) = (options.as_ptr(), values.as_ptr());
    assert_eq!(call!(library, cuModuleLoadDataEx(&mut wrong, text.as_ptr(), 2, options, values)), 218);
    let log = CStr::from_bytes_until_nul(&log).expect("a zero").to_str().expect("a text");
    assert!(log.contains("frobnicate.s32"), "{log}");
    assert_eq!(library.count("bad-module"), 1);
    assert_eq!(call!(library, cuModuleUnload(module)), 0);
    assert_eq!(call!(library, cuModuleUnload(module)), 400);
}

pub(crate) fn launches(library: &Library) {
    library.begin();
    let stream = library.stream();
    let add = library.function("add");
    let words = library.allocate(400);
    assert_eq!(call!(library, cuMemsetD32Async(words, 5, 100, stream)), 0);
    assert_eq!(library.launch(add, 2, 64, stream, &[words, 100, 7]), 0);
    // The same by a buffer.
    let mut buffer = [0_u8; 16];
    buffer[..8].copy_from_slice(&words.to_le_bytes());
    buffer[8..].copy_from_slice(&[50, 0, 0, 0, 100, 0, 0, 0]);
    let size = buffer.len();
    let extra =
        [1_u64, std::ptr::from_ref(&buffer).addr() as u64, 2, std::ptr::from_ref(&size).addr() as u64, 0];
    let null = std::ptr::null::<u64>();
    assert_eq!(call!(library, cuLaunchKernel(add, 1, 1, 1, 64, 1, 1, 0, stream, null, extra.as_ptr())), 0);
    assert_eq!(call!(library, cuStreamSynchronize(stream)), 0);
    let found = library.words(words, 100);
    assert_eq!((found[0], found[49], found[50], found[99]), (112, 112, 12, 12));
}

pub(crate) fn copies(library: &Library) {
    library.begin();
    let stream = library.stream();
    let (first, second) = (library.allocate(64), library.allocate(64));
    let host = library.pinned(64);
    // SAFETY: it has 64 bytes.
    let host_words = unsafe { std::slice::from_raw_parts_mut(host.cast::<u32>(), 16) };
    host_words.iter_mut().zip(0..).for_each(|(word, value)| *word = value);
    assert_eq!(call!(library, cuMemcpyHtoDAsync_v2(first, host, 64, stream)), 0);
    assert_eq!(call!(library, cuMemcpyDtoDAsync_v2(second, first, 64, stream)), 0);
    assert_eq!(call!(library, cuMemsetD16Async(second + 4, 0xabcd, 2, stream)), 0);
    assert_eq!(call!(library, cuMemsetD8Async(second + 8, 0x11, 3, stream)), 0);
    assert_eq!(call!(library, cuMemcpyAsync(host, second, 64, stream)), 0);
    assert_eq!(call!(library, cuStreamSynchronize(stream)), 0);
    assert_eq!(host_words[..4], [0, 0xabcd_abcd, 0x0011_1111, 3]);
    assert_eq!(library.count("pageable-copy"), 0);
    // From pageable memory it works, and blocks.
    let pageable = [7_u32; 16];
    assert_eq!(call!(library, cuMemcpyHtoDAsync_v2(first, pageable.as_ptr(), 64, stream)), 0);
    assert_eq!(call!(library, cuStreamQuery(stream)), 0);
    assert_eq!(library.count("pageable-copy"), 1);
    // Two rows of eight bytes each, from rows of sixteen.
    let mut copy = [0_u64; 16];
    (copy[2], copy[4], copy[6]) = (2, first, 16);
    (copy[9], copy[11], copy[13], copy[14], copy[15]) = (2, second, 8, 8, 2);
    assert_eq!(call!(library, cuMemcpy2DAsync_v2(copy.as_ptr(), stream)), 0);
    assert_eq!(call!(library, cuStreamSynchronize(stream)), 0);
    assert_eq!(library.words(second, 5), [7, 7, 7, 7, 4]);
    for wrong in [
        call!(library, cuMemcpyDtoDAsync_v2(second, first, 65, stream)),
        call!(library, cuMemsetD32Async(second + 2, 0, 1, stream)),
        call!(library, cuMemsetD32Async(second, 0, 17, stream)),
        call!(library, cuMemsetD8Async(0, 0, 1, stream)),
        call!(library, cuMemcpyDtoDAsync_v2(second + 4096, first, 4, stream)),
    ] {
        assert_eq!(wrong, 1);
    }
    assert_eq!(call!(library, cuMemcpyAsync(second, first, 0, stream)), 0);
}

pub(crate) fn graphs(library: &Library) {
    let context = library.begin();
    let stream = library.stream();
    let add = library.function("add");
    let (words, host) = (library.allocate(64), library.pinned(64));
    let mut graph = 0_u64;
    assert_eq!(call!(library, cuGraphCreate(&mut graph, 0)), 0);
    let nothing = std::ptr::null::<u64>();
    let set: [u64; 5] = [words, 64, 4 << 32 | 1, 16, 1];
    let (mut first, mut second, mut third, mut last) = (0_u64, 0_u64, 0_u64, 0_u64);
    assert_eq!(call!(library, cuGraphAddMemsetNode(&mut first, graph, nothing, 0, &set, context)), 0);
    let kernel = |amount: &u64| {
        let parameters = [std::ptr::from_ref(&words), std::ptr::from_ref(&16), std::ptr::from_ref(amount)];
        (parameters, [add, 1 | 1 << 32, 1 | 16 << 32, 1 | 1 << 32])
    };
    let add_kernel = |node: &mut u64, after: &u64, amount: u64| {
        let (parameters, [a, b, c, d]) = kernel(&amount);
        let it: [u64; 7] = [a, b, c, d, 0, parameters.as_ptr().addr() as u64, 0];
        call!(library, cuGraphAddKernelNode(node, graph, after, 1, &it))
    };
    assert_eq!(add_kernel(&mut second, &first, 10), 0);
    assert_eq!(call!(library, cuGraphAddEmptyNode(&mut third, graph, &second, 1)), 0);
    let mut copy = [0_u64; 25];
    (copy[4], copy[6], copy[9]) = (2, words, 64);
    (copy[15], copy[16], copy[20]) = (1, host.expose_provenance() as u64, 64);
    (copy[22], copy[23], copy[24]) = (64, 1, 1);
    assert_eq!(call!(library, cuGraphAddMemcpyNode(&mut last, graph, &third, 1, &copy, context)), 0);
    let mut count = 0_usize;
    assert_eq!(call!(library, cuGraphGetNodes(graph, nothing, &mut count)), 0);
    assert_eq!(count, 4);
    assert_eq!(call!(library, cuGraphAddEmptyNode(&mut third, graph, &99_u64, 1)), 1);
    let mut executable = 0_u64;
    assert_eq!(call!(library, cuGraphInstantiateWithFlags(&mut executable, graph, 0)), 0);
    assert_eq!(call!(library, cuGraphDestroy(graph)), 0);
    for _ in 0..3 {
        assert_eq!(call!(library, cuGraphLaunch(executable, stream)), 0);
    }
    assert_eq!(call!(library, cuStreamSynchronize(stream)), 0);
    // SAFETY: it has 64 bytes, and nothing is pending.
    assert_eq!(unsafe { host.read() }, 11 << 32 | 11);
    // A node's parameters can change.
    let (parameters, [a, b, c, d]) = kernel(&20);
    let it: [u64; 7] = [a, b, c, d, 0, parameters.as_ptr().addr() as u64, 0];
    assert_eq!(call!(library, cuGraphExecKernelNodeSetParams_v2(executable, second, &it)), 0);
    assert_eq!(call!(library, cuGraphLaunch(executable, stream)), 0);
    assert_eq!(call!(library, cuStreamSynchronize(stream)), 0);
    // SAFETY: as above.
    assert_eq!(unsafe { host.read() }, 21 << 32 | 21);
    assert_eq!(call!(library, cuGraphExecDestroy(executable)), 0);
    assert_eq!(call!(library, cuGraphLaunch(executable, stream)), 400);
}

pub(crate) fn pools(library: &Library) {
    library.begin();
    let stream = library.stream();
    let mut properties = [0_u64; 11];
    (properties[0], properties[1]) = (1, 1);
    let mut pool = 0_u64;
    assert_eq!(call!(library, cuMemPoolCreate(&mut pool, &properties)), 0);
    let mut address = 0_u64;
    assert_eq!(call!(library, cuMemAllocFromPoolAsync(&mut address, 256, pool, stream)), 0);
    let (mut used, mut high) = (0_u64, 0_u64);
    assert_eq!(call!(library, cuMemPoolGetAttribute(pool, 7, &mut used)), 0);
    assert_eq!(used, 256);
    assert_eq!(call!(library, cuMemsetD32Async(address, 5, 64, stream)), 0);
    assert_eq!(call!(library, cuStreamSynchronize(stream)), 0);
    assert_eq!(library.words(address, 2), [5, 5]);
    assert_eq!(call!(library, cuMemFreeAsync(address, stream)), 0);
    assert_eq!(call!(library, cuStreamSynchronize(stream)), 0);
    assert_eq!(call!(library, cuMemPoolGetAttribute(pool, 7, &mut used)), 0);
    assert_eq!(call!(library, cuMemPoolGetAttribute(pool, 8, &mut high)), 0);
    assert_eq!((used, high), (0, 256));
    assert_eq!(call!(library, cuMemPoolSetAttribute(pool, 4, &u64::MAX)), 0);
    assert_eq!(call!(library, cuMemPoolGetAttribute(pool, 4, &mut used)), 0);
    assert_eq!(used, u64::MAX);
    assert_eq!(call!(library, cuMemPoolTrimTo(pool, 0)), 0);
    let mut default = 0_u64;
    assert_eq!(call!(library, cuDeviceGetDefaultMemPool(&mut default, 0)), 0);
    assert_eq!(call!(library, cuMemPoolDestroy(default)), 1);
    assert_eq!(call!(library, cuMemAllocAsync(&mut address, 64, stream)), 0);
    let mut of = 0_u64;
    assert_eq!(call!(library, cuPointerGetAttribute(&mut of, 17, address)), 0);
    assert_eq!(of, default);
    assert_eq!(call!(library, cuMemPoolDestroy(pool)), 0);
    assert_eq!(call!(library, cuMemPoolTrimTo(pool, 0)), 400);
}
