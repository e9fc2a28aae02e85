// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The description of a network (`networkdesc.bin`): which of its inputs may be shorter than their buffers.
//!
//! It is a protocol buffer (`AICNetworkDesc.proto`) about the network as its user sees it, and most of it is for
//! people and for what the vendor's runtime does on the host. One part of it is a contract with the cores: an input
//! that may be partial is preceded, in its DMA buffer, by eight bytes that say where it begins and how long it is
//! (`DynamicSliceInfo`, both of 32 bits). The cores find the input by them, and only as much of the buffer as there
//! is of the input is transferred.

use super::ParseError;
use super::bytes::{piece, place};
use super::metadata::{Direction, Network};

/// How many bytes precede an input that may be partial.
const HEADER: u64 = 8;

/// Fields of messages, by their numbers in the vendor's schema.
mod field {
    pub(super) const INPUTS: u64 = 4;

    pub(super) const INPUT_NAME: u64 = 1;
    pub(super) const INPUT_TRANSFORMS: u64 = 4;
    pub(super) const INPUT_PARTIAL: u64 = 5;
    pub(super) const INPUT_ALIGNMENT: u64 = 6;

    pub(super) const TRANSFORM_KIND: u64 = 1;
    pub(super) const TRANSFORM_COPY: u64 = 9;

    pub(super) const COPY_OFFSET: u64 = 2;
    pub(super) const COPY_BUFFER: u64 = 3;
}

/// The kind of a transform that is a copy to a DMA buffer.
const COPY: u64 = 6;

/// A DMA buffer with an input that may be shorter than it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialInput {
    /// Which buffer.
    pub buffer: u16,
    /// The offset of the input in it, behind the header.
    pub begin: u64,
}

/// A field's value.
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Of a fixed length: none that is read here.
    Other,
}

impl<'a> Value<'a> {
    fn number(self, what: &str) -> Result<u64, ParseError> {
        match self {
            Value::Number(number) => Ok(number),
            _ => Err(ParseError::invalid(format!("{what} is no number"))),
        }
    }

    fn bytes(self, what: &str) -> Result<&'a [u8], ParseError> {
        match self {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(ParseError::invalid(format!("{what} is no message"))),
        }
    }
}

/// A number of seven bits a byte, the lowest first.
fn varint(bytes: &mut &[u8]) -> Result<u64, ParseError> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let Some((&byte, rest)) = bytes.split_first() else {
            return Err(ParseError::invalid("it ends within a number"));
        };
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(ParseError::invalid("a number of more than ten bytes"))
}

/// Takes the next bytes.
fn take<'a>(bytes: &mut &'a [u8], length: u64) -> Result<&'a [u8], ParseError> {
    let taken = piece(bytes, 0, place(length), "a field")?;
    *bytes = bytes.get(taken.len()..).unwrap_or_default();
    Ok(taken)
}

/// Visits the fields of a message, in their order.
fn fields<'a>(
    mut bytes: &'a [u8],
    mut visit: impl FnMut(u64, Value<'a>) -> Result<(), ParseError>,
) -> Result<(), ParseError> {
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let value = match tag & 7 {
            0 => Value::Number(varint(&mut bytes)?),
            1 => take(&mut bytes, 8).map(|_| Value::Other)?,
            2 => {
                let length = varint(&mut bytes)?;
                Value::Bytes(take(&mut bytes, length)?)
            }
            5 => take(&mut bytes, 4).map(|_| Value::Other)?,
            wire => {
                return Err(ParseError::invalid(format!("field {} is of wire type {wire}", tag >> 3)));
            }
        };
        visit(tag >> 3, value)?;
    }
    Ok(())
}

/// The last step on the way of an input to its buffer.
#[derive(Default)]
struct Transform {
    kind: u64,
    offset: u64,
    buffer: u64,
}

impl Transform {
    fn read(bytes: &[u8]) -> Result<Self, ParseError> {
        let mut transform = Self::default();
        fields(bytes, |number, value| {
            match number {
                field::TRANSFORM_KIND => transform.kind = value.number("its kind")?,
                field::TRANSFORM_COPY => fields(value.bytes("its copy")?, |number, value| {
                    match number {
                        field::COPY_OFFSET => transform.offset = value.number("its offset")?,
                        field::COPY_BUFFER => transform.buffer = value.number("its buffer")?,
                        _ => {}
                    }
                    Ok(())
                })?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(transform)
    }
}

/// An input of a network.
#[derive(Default)]
struct Input {
    name: String,
    is_partial: bool,
    alignment: u64,
    /// None for one that the compiler optimised away.
    last: Option<Transform>,
}

impl Input {
    fn read(bytes: &[u8]) -> Result<Self, ParseError> {
        let mut input = Self::default();
        fields(bytes, |number, value| {
            match number {
                field::INPUT_NAME => {
                    input.name = String::from_utf8_lossy(value.bytes("its name")?).into_owned()
                }
                field::INPUT_TRANSFORMS => input.last = Some(Transform::read(value.bytes("a transform")?)?),
                field::INPUT_PARTIAL => input.is_partial = value.number("is_partial_allowed")? != 0,
                field::INPUT_ALIGNMENT => input.alignment = value.number("its alignment")?,
                _ => {}
            }
            Ok(())
        })?;
        Ok(input)
    }
}

/// The inputs that may be partial, if a description names some, of a network that says this of itself.
pub fn partial_inputs(bytes: &[u8], network: &Network) -> Result<Vec<PartialInput>, ParseError> {
    let mut inputs = Vec::new();
    fields(bytes, |number, value| {
        if number == field::INPUTS {
            inputs.push(
                value
                    .bytes("an input")
                    .and_then(Input::read)
                    .map_err(|error| error.within(format_args!("input {}", inputs.len())))?,
            );
        }
        Ok(())
    })?;
    let mut found = Vec::new();
    for input in inputs.iter().filter(|input| input.is_partial) {
        let Some(last) = &input.last else { continue };
        let input = input.place(last, &inputs, network);
        found.push(input?);
    }
    Ok(found)
}

impl Input {
    /// The place of this input, which may be partial, in its buffer.
    fn place(
        &self,
        last: &Transform,
        inputs: &[Input],
        network: &Network,
    ) -> Result<PartialInput, ParseError> {
        let Transform { kind, offset, buffer } = *last;
        let name = &self.name;
        let refuse = |why: &str| {
            Err(ParseError::unsupported(format!(
                "input {name:?} may be partial, and {why}; compile the network with a DMA buffer for this input alone"
            )))
        };
        if kind != COPY {
            return refuse(&format!(
                "the last step on its way is of kind {kind}, not a copy to a DMA buffer"
            ));
        }
        let comes_here = |last: &Transform| last.kind == COPY && last.buffer == buffer;
        if inputs.iter().filter(|input| input.last.as_ref().is_some_and(comes_here)).count() > 1 {
            return refuse(&format!("it shares buffer {buffer} with other inputs"));
        }
        let requests: Vec<_> =
            network.requests.iter().filter(|request| u64::from(request.buffer) == buffer).collect();
        let [request] = requests[..] else {
            return refuse(&format!("its buffer {buffer} has {} DMA requests", requests.len()));
        };
        let length = u64::from(request.size);
        let begin = HEADER.checked_next_multiple_of(self.alignment.max(1));
        let Some(begin) = begin.filter(|&begin| begin <= length) else {
            return refuse(&format!(
                "its buffer has {length} bytes, too few for a header of {HEADER} and an alignment of {}",
                self.alignment
            ));
        };
        if request.direction != Direction::In || (request.host_offset, offset) != (0, 0) {
            return refuse("its buffer does not go in from its beginning");
        }
        Ok(PartialInput { buffer: request.buffer, begin })
    }
}

#[cfg(test)]
mod tests {
    use super::super::metadata::Request;
    use super::super::{Container, qpc};
    use super::*;
    use proptest::prelude::*;

    /// What the public compiler (`ComputeProgram`, `QPCBuilder` of software-kit-for-qualcomm-cloud-ai-100-cc) makes of
    /// a configuration with one input of 256 floats that may be partial, and one output.
    const COMPILER: &[u8] = include_bytes!("description/compiler_partial.qpc");

    fn compiled() -> (Network, Vec<u8>) {
        let container = Container::read(COMPILER).unwrap();
        let description = container.segment(qpc::name::NETWORK_DESCRIPTION).unwrap();
        (Network::read(container.network().unwrap()).unwrap(), description.bytes.to_vec())
    }

    /// A field of wire type 2.
    fn message(number: u8, parts: &[&[u8]]) -> Vec<u8> {
        let bytes = parts.concat();
        [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], &bytes[..]].concat()
    }

    /// An input that is copied to a buffer, with more fields.
    fn input(buffer: u8, more: &[u8]) -> Vec<u8> {
        let copy = message(9, &[&[0x18, buffer]]);
        message(4, &[&message(1, &[b"x"]), &message(4, &[&[0x08, 6], &copy]), more])
    }

    const PARTIAL: [u8; 2] = [0x28, 1];

    #[test]
    fn what_the_vendors_compiler_says_of_a_partial_input_is_read() {
        let (network, description) = compiled();
        let expected = PartialInput { buffer: 0, begin: 8 };
        assert_eq!(partial_inputs(&description, &network).unwrap(), [expected]);
        assert_eq!((network.requests[0].size, network.requests.len()), (1024, 2));
        // Its own fields in other bytes: without the flag, and with the largest alignment that leaves no room.
        let with = |more: &[u8]| partial_inputs(&input(0, more), &network);
        assert_eq!(with(&[]).unwrap(), []);
        assert_eq!(with(&[0x28, 0]).unwrap(), []);
        assert_eq!(with(&PARTIAL).unwrap(), [expected], "no alignment is one of a byte");
        let begin = |alignment: &[u8]| with(&[&PARTIAL, alignment].concat()).map(|found| found[0].begin);
        assert_eq!(begin(&[0x30, 64]), Ok(64));
        assert_eq!(begin(&[0x30, 12]), Ok(12));
        assert_eq!(begin(&[0x30, 0x80, 8]), Ok(1024), "an empty input fits");
        let refused = begin(&[0x30, 0x80, 16]).unwrap_err().to_string();
        assert!(
            refused.contains("1024 bytes, too few for a header of 8 and an alignment of 2048"),
            "{refused}"
        );
        // One that was optimised away comes to no buffer.
        let away = message(4, &[&message(1, &[b"x"]), &PARTIAL]);
        assert_eq!(partial_inputs(&away, &network).unwrap(), []);
    }

    #[test]
    fn partial_input_that_cannot_be_obeyed_is_refused_with_its_name() {
        let (network, _) = compiled();
        let refused = |description: &[u8], network: &Network| {
            let error = partial_inputs(description, network).unwrap_err().to_string();
            assert!(error.starts_with("input \"x\" may be partial, and "), "{error}");
            assert!(error.ends_with("compile the network with a DMA buffer for this input alone"), "{error}");
            error
        };
        let shared = [input(0, &PARTIAL), input(0, &[])].concat();
        assert!(refused(&shared, &network).contains("it shares buffer 0"));
        assert!(refused(&input(1, &PARTIAL), &network).contains("does not go in"));
        assert!(refused(&input(7, &PARTIAL), &network).contains("buffer 7 has 0 DMA requests"));
        let mut twice = network.clone();
        twice.requests.insert(0, Request { host_offset: 1024, ..twice.requests[0].clone() });
        assert!(refused(&input(0, &PARTIAL), &twice).contains("buffer 0 has 2 DMA requests"));
        twice.requests.remove(1);
        assert!(refused(&input(0, &PARTIAL), &twice).contains("from its beginning"));
        let quantised = message(4, &[&message(1, &[b"x"]), &message(4, &[&[0x08, 5]]), &PARTIAL]);
        assert!(refused(&quantised, &network).contains("of kind 5"));
    }

    #[test]
    fn description_that_is_no_message_is_refused() {
        let (network, description) = compiled();
        let refused = |bytes: &[u8]| partial_inputs(bytes, &network).unwrap_err().to_string();
        assert!(refused(&[0x22]).contains("ends within a number"));
        assert!(refused(&[0x22, 5, 0]).contains("beyond the end"));
        assert!(refused(&[0xff; 11]).contains("more than ten bytes"));
        assert!(refused(&[0x23]).contains("wire type 3"));
        assert!(refused(&[0x20, 1]).contains("an input is no message"));
        assert!(refused(&message(4, &[&[0x2a, 0]])).starts_with("input 0: is_partial_allowed is no number"));
        assert!(refused(&description[..description.len() - 1]).contains("beyond the end"));
    }

    proptest! {
        #[test]
        fn fuzz_no_change_makes_it_panic(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let (network, mut description) = compiled();
            for (at, byte) in changes {
                let at = at.index(description.len());
                description[at] = byte;
            }
            for input in partial_inputs(&description, &network).unwrap_or_default() {
                prop_assert!((HEADER..=1024).contains(&input.begin), "it begins within its buffer");
            }
        }
    }
}
