// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Errors of CUDA's functions, and the failures that programs see.

use hal_backend::{Code, Failure, Origin};
use std::fmt;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;
/// `CUDA_ERROR_NOT_INITIALIZED`, also in a process that was forked from one that uses CUDA.
pub(super) const NOT_INITIALIZED: i32 = 3;
/// `CUDA_ERROR_NOT_FOUND`.
const NOT_FOUND: i32 = 500;
/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: i32 = 100;
/// `CUDA_ERROR_NOT_READY`.
pub(super) const NOT_READY: i32 = 600;

/// An error that a function of CUDA's returned.
#[derive(Clone, Debug)]
pub(crate) struct CudaError {
    pub(super) function: &'static str,
    pub(super) number: i32,
    /// CUDA's name of the error.
    pub(super) name: String,
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} answered {} ({})", self.function, self.name, self.number)
    }
}

/// What to do about an error; empty where the name says it.
fn advice(number: i32) -> &'static str {
    match number {
        OUT_OF_MEMORY => {
            "; free memory of this device, or of other programs on the card (nvidia-smi lists them), or raise this \
             process's limits of memory and threads (ulimit -v, ulimit -u, pids.max)"
        }
        // CUDA was initialised when the library was opened, and a child of the process does not have it.
        NOT_INITIALIZED => {
            "; a process that was forked from one that uses CUDA cannot use it: open devices in a program of its own"
        }
        46 => {
            "; another process may have the card for itself: nvidia-smi -q -d COMPUTE shows the card's mode, \
             nvidia-smi lists its processes"
        }
        802 => "; cards that are linked need the fabric manager: systemctl status nvidia-fabricmanager",
        803 => {
            "; the library is of another release than the kernel's driver: restart the machine after an update"
        }
        804 => {
            "; this is the library of CUDA's compatibility package, which the card does not support: leave it out"
        }
        999 => "; see whether nvidia-smi works on this machine, and whether nvidia_uvm is loaded (lsmod)",
        4 => "; see whether nvidia-smi works on this machine",
        NO_DEVICE => "; see whether nvidia-smi lists a card, and what CUDA_VISIBLE_DEVICES says",
        200 | 209 | 218 | 221 | 222 => {
            "; compile the module for this card or an older one, such as --iree-cuda-target=sm_80, or update \
             NVIDIA's driver"
        }
        214 => "; the card's memory is faulty or was, see nvidia-smi -q; open the device again",
        220 => "; an NVLink is faulty, see nvidia-smi nvlink; open the device again",
        // CUDA's header says that the process must be launched again after these, and of the next one.
        226 | 700 | 714..=719 | 721 => {
            "; a kernel that was submitted before has a fault, which compute-sanitizer finds; start the program \
             again, since CUDA answers everything in this process with the same error"
        }
        701 => "; the launch needs more registers or shared memory than the card has",
        702 => {
            "; a kernel ran longer than the system allows; start the program again, since CUDA answers everything in \
             this process with the same error"
        }
        _ => "",
    }
}

fn code(number: i32) -> Code {
    match number {
        1 => Code::InvalidArgument,
        OUT_OF_MEMORY | 701 => Code::ResourceExhausted,
        NO_DEVICE | 101 | NOT_FOUND => Code::NotFound,
        200 | 218 => Code::InvalidArgument,
        209 | 222 => Code::Incompatible,
        800 => Code::PermissionDenied,
        801 => Code::Unimplemented,
        214 => Code::DataLoss,
        702 => Code::DeadlineExceeded,
        226 | 700 | 714..=719 | 721 => Code::Aborted,
        NOT_INITIALIZED | 4 | 46 | 220 | 709 | 802 | 803 | 804 => Code::Unavailable,
        _ => Code::Internal,
    }
}

impl CudaError {
    /// True if the context is of no use any more, or the process.
    pub(crate) fn is_loss(&self) -> bool {
        matches!(
            self.number,
            4 | 46 | 201 | 214 | 220 | 226 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 810 | 999
        )
    }

    /// True if there was no memory left.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.number == OUT_OF_MEMORY
    }

    pub(crate) fn is_not_found(&self) -> bool {
        self.number == NOT_FOUND
    }

    /// The failure of doing something. `what` says what was tried.
    pub(crate) fn failure(&self, what: impl fmt::Display) -> Failure {
        self.advised(what, advice(self.number))
    }

    /// A module of the driver's own was refused: nothing about it is the program's to change.
    pub(crate) fn own_module(&self, log: &str) -> Failure {
        let log = if log.is_empty() { String::new() } else { format!(" ({log})") };
        let what = format!("loading the driver's own kernel{log}");
        match self.number {
            200 | 209 | 218 | 221 | 222 => self.advised(what, "; update NVIDIA's driver"),
            _ => self.failure(what),
        }
    }

    fn advised(&self, what: impl fmt::Display, advice: &str) -> Failure {
        let message = format!("{what}: {self}{advice}");
        let origin = if self.is_loss() { Origin::Device } else { Origin::Operation };
        Failure::with_origin(code(self.number), origin, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(number: i32) -> CudaError {
        CudaError { function: "cuLaunchKernel", number, name: "CUDA_ERROR_X".to_owned() }
    }

    #[test]
    fn failure_names_what_was_tried_the_function_the_error_and_the_remedy() {
        let failure = error(700).failure("queue 1");
        assert_eq!((failure.code(), failure.origin()), (Code::Aborted, Origin::Device));
        let says = "queue 1: cuLaunchKernel answered CUDA_ERROR_X (700); a kernel that was submitted before has a \
                    fault, which compute-sanitizer finds; start the program again, since CUDA answers everything in \
                    this process with the same error";
        assert_eq!(failure.message(), says);
        assert_eq!(error(2).failure("x").code(), Code::ResourceExhausted);
    }

    #[test]
    fn kernel_of_the_drivers_own_is_not_the_programs_to_compile() {
        let says = "loading the driver's own kernel: cuLaunchKernel answered CUDA_ERROR_X (222); update NVIDIA's \
                    driver";
        assert_eq!(error(222).own_module("").message(), says);
        assert!(error(2).own_module("line 1").message().contains("kernel (line 1): "));
    }

    #[test]
    fn errors_that_stay_are_losses_and_others_are_not() {
        assert!([700, 719, 716, 702, 710, 999, 214].iter().all(|&number| error(number).is_loss()));
        assert!(![1, 2, 100, 218, 500, 600, 701, 712, 801].iter().any(|&number| error(number).is_loss()));
    }
}
