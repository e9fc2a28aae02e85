// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The expected bytes of a world, by plain arithmetic.

use super::plan::{Collective, Event, Item, NamedRange, What, World};
use crate::rig::*;
use hal_sys as sys;

/// An integer type.
pub(super) struct Element {
    pub(super) size: usize,
    signed: bool,
    pub(super) code: u32,
}

const fn element(size: usize, signed: bool, code: u32) -> Element {
    Element { size, signed, code }
}

/// Neighbours differ only in the sign.
pub(super) const ELEMENTS: [Element; 8] = [
    element(1, true, sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_SINT_8),
    element(1, false, sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_UINT_8),
    element(2, true, sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_SINT_16),
    element(2, false, sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_UINT_16),
    element(4, true, sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_SINT_32),
    element(4, false, sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_UINT_32),
    element(8, true, sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_SINT_64),
    element(8, false, sys::IREE_HAL_COLLECTIVE_ELEMENT_TYPE_UINT_64),
];

/// IREE's numbers for the reductions.
pub(super) const REDUCTIONS: [u32; 5] = [
    sys::IREE_HAL_COLLECTIVE_REDUCTION_SUM,
    sys::IREE_HAL_COLLECTIVE_REDUCTION_PRODUCT,
    sys::IREE_HAL_COLLECTIVE_REDUCTION_MINIMUM,
    sys::IREE_HAL_COLLECTIVE_REDUCTION_MAXIMUM,
    sys::IREE_HAL_COLLECTIVE_REDUCTION_AVERAGE,
];

fn number(element: &Element, bytes: &[u8]) -> i128 {
    let mut all = [if element.signed && bytes[element.size - 1] >= 0x80 { 0xFF } else { 0 }; 16];
    all[..element.size].copy_from_slice(bytes);
    i128::from_le_bytes(all)
}

/// Folds all ranks' numbers for one element.
fn fold(reduction: u32, numbers: &[i128]) -> i128 {
    let all = numbers.iter().copied();
    match reduction {
        0 => all.sum(),
        1 => all.fold(1, i128::wrapping_mul),
        2 => all.min().unwrap(),
        3 => all.max().unwrap(),
        _ => all.sum::<i128>() / numbers.len() as i128,
    }
}

/// The reduction of a range of all ranks' bytes.
fn reduced(one: &Collective, sent: &[Vec<u8>], from: usize, length: usize) -> Vec<u8> {
    let element = &ELEMENTS[one.element];
    let places = (from..from + length).step_by(element.size);
    let results = places.map(|at| {
        let numbers: Vec<i128> =
            sent.iter().map(|bytes| number(element, &bytes[at..at + element.size])).collect();
        fold(one.reduction, &numbers)
    });
    results.flat_map(|result| result.to_le_bytes()[..element.size].to_vec()).collect()
}

/// The bytes that a rank gets from all that was sent.
fn got(one: &Collective, sent: &[Vec<u8>], rank: usize) -> Vec<u8> {
    let ranks = sent.len();
    let length = one.count * ELEMENTS[one.element].size;
    let share = length / ranks;
    match one.kind {
        ALL_REDUCE | REDUCE => reduced(one, sent, 0, length),
        REDUCE_SCATTER => reduced(one, sent, rank * length, length),
        ALL_GATHER => sent.concat(),
        ALL_TO_ALL => sent.iter().flat_map(|bytes| bytes[rank * share..][..share].to_vec()).collect(),
        SEND_RECV => sent[(rank + ranks - 1) % ranks].clone(),
        _ => sent[one.from].clone(),
    }
}

/// The bytes of every buffer of every device.
pub(super) type Bytes = Vec<Vec<Vec<u8>>>;

fn read(buffers: &[Vec<u8>], place: &NamedRange) -> Vec<u8> {
    buffers[place.buffer][place.offset..][..place.length].to_vec()
}

fn write(buffers: &mut [Vec<u8>], place: &NamedRange, bytes: &[u8]) {
    buffers[place.buffer][place.offset..][..place.length].copy_from_slice(bytes);
}

fn apply_local(buffers: &mut [Vec<u8>], item: &Item) {
    match &item.what {
        What::Fill { target, pattern } => {
            let bytes: Vec<u8> = pattern.iter().copied().cycle().take(target.length).collect();
            write(buffers, target, &bytes);
        }
        What::Copy { source, target } => {
            let bytes = read(buffers, source);
            write(buffers, target, &bytes);
        }
        What::Update { target, byte } => write(buffers, target, &vec![*byte; target.length]),
        What::Collective { .. } => unreachable!("several devices do it"),
    }
}

/// Applies one round of an event.
pub(super) fn apply(world: &World, event: &Event, bytes: &mut Bytes) {
    let mut at = vec![0; event.scripts.len()];
    let mut is_done: Vec<bool> = vec![false; event.collectives.len()];
    loop {
        // Each device proceeds to a collective that not all ranks have reached.
        let mut moved = false;
        for (script, at) in event.scripts.iter().zip(&mut at) {
            while let Some(item) = script.items.get(*at) {
                match item.what {
                    What::Collective { number, .. } if !is_done[number] => break,
                    What::Collective { .. } => {}
                    _ => apply_local(&mut bytes[script.device], item),
                }
                *at += 1;
                moved = true;
            }
        }
        // A command that no barrier orders before the device's place may be done there already.
        let next = (0..event.collectives.len()).find(|&number| {
            let is_there = |(script, &at): (&super::plan::Script, &usize)| {
                let Some(place) = place_of(script, number) else { return true };
                script.items[at..=place.max(at)].iter().skip(1).all(|item| !item.barrier)
            };
            !is_done[number] && event.scripts.iter().zip(&at).all(is_there)
        });
        match next {
            Some(number) => {
                is_done[number] = true;
                exchange(world, event, number, bytes);
            }
            None if moved => {}
            None => break,
        }
    }
    assert!(is_done.iter().all(|done| *done), "a program that stands still: {event:?}");
}

fn place_of(script: &super::plan::Script, number: usize) -> Option<usize> {
    script
        .items
        .iter()
        .position(|item| matches!(item.what, What::Collective { number: own, .. } if own == number))
}

fn exchange(world: &World, event: &Event, number: usize, bytes: &mut Bytes) {
    let one = &event.collectives[number];
    let members = &world.groups[one.group].members;
    let ends = |device: usize| {
        let script = event.script_of(device)?;
        match script.items[place_of(script, number)?].what {
            What::Collective { send, recv, .. } => Some((send, recv)),
            _ => None,
        }
    };
    let sent: Vec<Vec<u8>> = members
        .iter()
        .map(|&device| {
            let send = ends(device).and_then(|(send, _)| send);
            send.map(|place| read(&bytes[device], &place)).unwrap_or_default()
        })
        .collect();
    for (rank, &device) in members.iter().enumerate() {
        if let Some((_, Some(recv))) = ends(device) {
            write(&mut bytes[device], &recv, &got(one, &sent, rank));
        }
    }
}
