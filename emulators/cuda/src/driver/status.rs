// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Results of functions.

/// A result other than success, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error(pub i32);

impl Error {
    /// True if any further work of the process answers with this error, as CUDA's header says of it.
    #[must_use]
    pub fn stays(self) -> bool {
        matches!(self.0, 226 | 700 | 702 | 714..=719 | 721)
    }
}

/// What functions return.
pub type Outcome<T = ()> = Result<T, Error>;

macro_rules! errors {
    ($($name:ident = $value:literal,)*) => {
        #[expect(missing_docs, reason = "the names are CUDA's")]
        impl Error {
            $(pub const $name: Self = Self($value);)*
        }

        /// The name of a result, with a zero at its end.
        #[must_use]
        pub fn name(result: i32) -> Option<&'static str> {
            match result {
                0 => Some("CUDA_SUCCESS\0"),
                $($value => Some(concat!("CUDA_ERROR_", stringify!($name), "\0")),)*
                _ => None,
            }
        }
    };
}

errors! {
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    DEINITIALIZED = 4,
    PROFILER_DISABLED = 5,
    PROFILER_NOT_INITIALIZED = 6,
    PROFILER_ALREADY_STARTED = 7,
    PROFILER_ALREADY_STOPPED = 8,
    STUB_LIBRARY = 34,
    DEVICE_UNAVAILABLE = 46,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    DEVICE_NOT_LICENSED = 102,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    CONTEXT_ALREADY_CURRENT = 202,
    MAP_FAILED = 205,
    UNMAP_FAILED = 206,
    ARRAY_IS_MAPPED = 207,
    ALREADY_MAPPED = 208,
    NO_BINARY_FOR_GPU = 209,
    ALREADY_ACQUIRED = 210,
    NOT_MAPPED = 211,
    NOT_MAPPED_AS_ARRAY = 212,
    NOT_MAPPED_AS_POINTER = 213,
    ECC_UNCORRECTABLE = 214,
    UNSUPPORTED_LIMIT = 215,
    CONTEXT_ALREADY_IN_USE = 216,
    PEER_ACCESS_UNSUPPORTED = 217,
    INVALID_PTX = 218,
    INVALID_GRAPHICS_CONTEXT = 219,
    NVLINK_UNCORRECTABLE = 220,
    JIT_COMPILER_NOT_FOUND = 221,
    UNSUPPORTED_PTX_VERSION = 222,
    JIT_COMPILATION_DISABLED = 223,
    UNSUPPORTED_EXEC_AFFINITY = 224,
    UNSUPPORTED_DEVSIDE_SYNC = 225,
    CONTAINED = 226,
    INVALID_SOURCE = 300,
    FILE_NOT_FOUND = 301,
    SHARED_OBJECT_SYMBOL_NOT_FOUND = 302,
    SHARED_OBJECT_INIT_FAILED = 303,
    OPERATING_SYSTEM = 304,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    LOSSY_QUERY = 402,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    LAUNCH_TIMEOUT = 702,
    LAUNCH_INCOMPATIBLE_TEXTURING = 703,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    PEER_ACCESS_NOT_ENABLED = 705,
    PRIMARY_CONTEXT_ACTIVE = 708,
    CONTEXT_IS_DESTROYED = 709,
    ASSERT = 710,
    TOO_MANY_PEERS = 711,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    HOST_MEMORY_NOT_REGISTERED = 713,
    HARDWARE_STACK_ERROR = 714,
    ILLEGAL_INSTRUCTION = 715,
    MISALIGNED_ADDRESS = 716,
    INVALID_ADDRESS_SPACE = 717,
    INVALID_PC = 718,
    LAUNCH_FAILED = 719,
    COOPERATIVE_LAUNCH_TOO_LARGE = 720,
    TENSOR_MEMORY_LEAK = 721,
    NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801,
    SYSTEM_NOT_READY = 802,
    SYSTEM_DRIVER_MISMATCH = 803,
    COMPAT_NOT_SUPPORTED_ON_DEVICE = 804,
    MPS_CONNECTION_FAILED = 805,
    MPS_RPC_FAILURE = 806,
    MPS_SERVER_NOT_READY = 807,
    MPS_MAX_CLIENTS_REACHED = 808,
    MPS_MAX_CONNECTIONS_REACHED = 809,
    MPS_CLIENT_TERMINATED = 810,
    CDP_NOT_SUPPORTED = 811,
    CDP_VERSION_MISMATCH = 812,
    STREAM_CAPTURE_UNSUPPORTED = 900,
    STREAM_CAPTURE_INVALIDATED = 901,
    STREAM_CAPTURE_MERGE = 902,
    STREAM_CAPTURE_UNMATCHED = 903,
    STREAM_CAPTURE_UNJOINED = 904,
    STREAM_CAPTURE_ISOLATION = 905,
    STREAM_CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907,
    STREAM_CAPTURE_WRONG_THREAD = 908,
    TIMEOUT = 909,
    GRAPH_EXEC_UPDATE_FAILURE = 910,
    EXTERNAL_DEVICE = 911,
    INVALID_CLUSTER_SIZE = 912,
    FUNCTION_NOT_LOADED = 913,
    INVALID_RESOURCE_TYPE = 914,
    INVALID_RESOURCE_CONFIGURATION = 915,
    KEY_ROTATION = 916,
    UNKNOWN = 999,
}
