// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The card's own executables: one function that computes each word of its last buffer from the same word of
//! the others.
//!
//! `ACME`, the number of buffers, the number of constants and the number of instructions as bytes, then the
//! instructions, two bytes each: what to do, and with which buffer or constant. They work on one number,
//! which begins as zero and is the result.

use hal_backend::{Code, Failure, Function, HostPart};

/// What it is called.
pub const FORMAT: &str = "acme-bytecode";

const MAGIC: &[u8; 4] = b"ACME";
const HEAD: usize = 7;

#[derive(Clone, Copy)]
enum Instruction {
    /// Adds the word of a buffer.
    Add(usize),
    /// Multiplies with a constant.
    Scale(usize),
    /// Adds a constant.
    Offset(usize),
}

/// A parsed executable: no instruction names a buffer or a constant that there is not.
pub struct Bytecode {
    buffers: u8,
    constants: u8,
    instructions: Vec<Instruction>,
}

fn wrong(what: impl Into<Box<str>>) -> Failure {
    Failure::new(Code::InvalidArgument, what)
}

impl Bytecode {
    /// An executable, and how many bytes it has.
    pub fn parse(data: &[u8]) -> Result<(Self, usize), Failure> {
        let (head, body) =
            data.split_at_checked(HEAD).ok_or_else(|| wrong("too short for a program of acme's"))?;
        let Some(&[buffers, constants, count]) = head.strip_prefix(MAGIC) else {
            return Err(wrong("a program of acme's begins with ACME"));
        };
        if buffers == 0 {
            return Err(wrong("a program of acme's has a buffer for its results"));
        }
        let length = 2 * usize::from(count);
        let code = body.get(..length).ok_or_else(|| {
            wrong(format!("a program of {count} instructions has {length} bytes of them, not {}", body.len()))
        })?;
        let instructions = code.chunks_exact(2).map(|pair| match *pair {
            [0, buffer] if buffer < buffers - 1 => Ok(Instruction::Add(buffer.into())),
            [1, constant] if constant < constants => Ok(Instruction::Scale(constant.into())),
            [2, constant] if constant < constants => Ok(Instruction::Offset(constant.into())),
            _ => Err(wrong(format!(
                "{pair:?} is no instruction of acme's with {buffers} buffers and {constants} constants"
            ))),
        });
        let instructions = instructions.collect::<Result<_, _>>()?;
        Ok((Self { buffers, constants, instructions }, HEAD + length))
    }

    /// Its function.
    pub fn function(&self) -> Function {
        Function {
            name: "main".into(),
            bindings: self.buffers.into(),
            constants: self.constants.into(),
            workgroup_size: [1; 3],
        }
    }

    /// Computes the whole of the last buffer.
    pub fn run(&self, constants: &[u32], buffers: &[HostPart<'_>]) -> Result<(), Failure> {
        let (target, sources) = buffers.split_last().ok_or_else(|| wrong("a dispatch without buffers"))?;
        let constant =
            |number: usize| constants.get(number).copied().ok_or_else(|| wrong("a constant is missing"));
        for at in (0..target.length()).step_by(4) {
            let mut result = 0_u32;
            for instruction in &self.instructions {
                result = match *instruction {
                    Instruction::Add(buffer) => result.wrapping_add(word(
                        sources.get(buffer).ok_or_else(|| wrong("a buffer is missing"))?,
                        at,
                    )?),
                    Instruction::Scale(number) => result.wrapping_mul(constant(number)?),
                    Instruction::Offset(number) => result.wrapping_add(constant(number)?),
                };
            }
            if !part(target, at)?.write(&result.to_le_bytes()) {
                return Err(wrong("a word is cut short"));
            }
        }
        Ok(())
    }
}

fn part<'a>(buffer: &HostPart<'a>, at: usize) -> Result<HostPart<'a>, Failure> {
    buffer
        .part(at as u64, 4)
        .ok_or_else(|| wrong("buffers of a program have the same length, in words of four bytes"))
}

fn word(buffer: &HostPart<'_>, at: usize) -> Result<u32, Failure> {
    let mut bytes = [0; 4];
    let is_whole = part(buffer, at)?.read(&mut bytes);
    is_whole.then(|| u32::from_le_bytes(bytes)).ok_or_else(|| wrong("a word is cut short"))
}
