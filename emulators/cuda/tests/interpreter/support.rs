// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Kernels that a test writes, and memory for them.

use emulator_cuda::ptx::Module;
use emulator_cuda::simt::{Launch, Memory, Region, Trap, run};
use std::sync::atomic::AtomicBool;

/// Where the memory of tests begins.
pub(crate) const BASE: u64 = 0x10_0000;

/// Words of memory at `BASE`.
pub(crate) struct Words {
    words: Vec<u64>,
}

// The pointer that `find` makes is of memory that lives as long as the launch.
impl Memory for Words {
    fn find(&self, address: u64) -> Option<Region> {
        let size = self.words.len() as u64 * 8;
        let host = self.words.as_ptr().cast_mut().cast();
        // SAFETY: the vector is not resized, and nobody else accesses it during a launch.
        (BASE..BASE + size).contains(&address).then(|| unsafe { Region::new(BASE, size, host, true, None) })
    }
}

/// A kernel `test` with one parameter, the address of the memory.
pub(crate) fn kernel(body: &str) -> String {
    format!(
        ".version 7.6\n.target sm_80\n.address_size 64\n.visible .entry test(.param .u64 at)\n{{\n\
         .reg .pred %p<20>;\n.reg .b16 %h<20>;\n.reg .b32 %r<40>;\n.reg .b64 %d<40>;\n.reg .b64 %at;\n\
         ld.param.u64 %at, [at];\n{body}\nret;\n}}\n"
    )
}

/// A launch of `test` with this many blocks and threads.
pub(crate) fn launch(text: &str, blocks: u32, threads: u32, words: &mut Vec<u64>) -> Result<u64, Trap> {
    launch_in_order(text, [blocks, 1, 1], threads, 0, words)
}

/// The same, with blocks in the order of a seed.
pub(crate) fn launch_in_order(
    text: &str,
    grid: [u32; 3],
    threads: u32,
    seed: u64,
    words: &mut Vec<u64>,
) -> Result<u64, Trap> {
    let module = Module::parse(text).unwrap_or_else(|refusal| panic!("{refusal}"));
    let launch = Launch {
        kernel: module.kernel("test").expect("the kernel"),
        grid,
        block: [threads, 1, 1],
        dynamic_shared: 256,
        parameters: &BASE.to_le_bytes(),
        globals: &[BASE],
        seed,
        budget: Some(1 << 20),
        stop: &AtomicBool::new(false),
    };
    let memory = Words { words: std::mem::take(words) };
    let outcome = run(&launch, &memory);
    *words = memory.words;
    outcome
}

/// Runs a body on one block, and returns the memory.
pub(crate) fn run_body(body: &str, threads: u32, words: &[u64]) -> Vec<u64> {
    let mut words = words.to_vec();
    launch(&kernel(body), 1, threads, &mut words).unwrap_or_else(|trap| panic!("{trap}\n{body}"));
    words
}

/// The fault of a body.
pub(crate) fn fault(body: &str, threads: u32, words: &[u64]) -> Trap {
    let mut words = words.to_vec();
    launch(&kernel(body), 1, threads, &mut words).expect_err(body)
}

/// Runs one instruction on operands that are loaded from memory; the name of a register's file (`h` with 16 bits, `r`,
/// `d`, `p`) stands for the result and for each operand. Also under a predicate that is false: then nothing changes.
pub(crate) fn instruction(form: &str, to: char, from: &[(char, u64)]) -> u64 {
    let mut load = String::new();
    let mut operands = Vec::new();
    let mut words = vec![0; 8];
    for (at, (file, value)) in from.iter().enumerate() {
        let slot = at + 1;
        words[slot] = *value;
        let offset = slot * 8;
        load += &match file {
            'p' => format!("ld.u32 %r30, [%at+{offset}];\nsetp.ne.u32 %p{slot}, %r30, 0;\n"),
            'r' => format!("ld.u32 %r{slot}, [%at+{offset}];\n"),
            'h' => format!("ld.u16 %h{slot}, [%at+{offset}];\n"),
            _ => format!("ld.u64 %d{slot}, [%at+{offset}];\n"),
        };
        operands.push(format!(", %{file}{slot}"));
    }
    let (begin, store) = match to {
        'p' => ("setp.ne.u32 %p0, 0, 0;", "selp.u32 %r31, 1, 0, %p0;\nst.u32 [%at], %r31;"),
        'r' => ("mov.u32 %r0, 0x5a5a5a5a;", "st.u32 [%at], %r0;"),
        'h' => ("mov.u16 %h0, 0x5a5a;", "st.u16 [%at], %h0;"),
        _ => ("mov.u64 %d0, 0x5a5a5a5a5a5a5a5a;", "st.u64 [%at], %d0;"),
    };
    let operands = operands.concat();
    let body = format!("{load}{begin}\n{form} %{to}0{operands};\n{store}");
    let result = run_body(&body, 1, &words)[0];
    let never = format!("{load}{begin}\nsetp.ne.u32 %p19, 0, 0;\n@%p19 {form} %{to}0{operands};\n{store}");
    let before = match to {
        'p' => 0,
        'r' => 0x5a5a_5a5a,
        'h' => 0x5a5a,
        _ => 0x5a5a_5a5a_5a5a_5a5a,
    };
    assert_eq!(run_body(&never, 1, &words)[0], before, "{form} under a predicate that is false");
    result
}

/// The bits of a float.
pub(crate) fn f(value: f32) -> u64 {
    u64::from(value.to_bits())
}

/// The bits of a float.
pub(crate) fn g(value: f64) -> u64 {
    value.to_bits()
}
