// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Devices and processes that end with collectives under way, at any moment and from anywhere.

use crate::common::{Buffer, Commands, Device, List, Result, Semaphore, barrier};
use crate::rig::*;
use hal_semaphore::Code;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// So soon that it does not count as hanging, on a busy machine.
const SOON: Duration = Duration::from_secs(15);

fn sum(rank: &Rank) -> Semaphore {
    let (send, recv) = (rank.words(&[1; 4]), rank.words(&[0; 4]));
    let commands = rank.commands(ALL_REDUCE, 0, (&send, &recv), 4).unwrap();
    let done = rank.device.semaphore(0);
    rank.device.execute(u64::MAX, &List::none(), &done.at(1), &commands, &[]).unwrap();
    done
}

/// A collective's callback releases the last reference to its own device: after success, after failure, and while
/// another collective waits in another group.
#[test]
fn device_may_be_released_by_the_callback_of_its_collective() {
    for (succeeds, waits) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut ranks = mocks(2);
        let id = fresh_id();
        let pair: Vec<Rank> = (0..)
            .zip(&ranks)
            .map(|(number, rank)| {
                let device = rank.device.again();
                let channel = device.channel(&id, "", (number, 2)).unwrap();
                Rank { channel, done: device.semaphore(0), device }
            })
            .collect();
        let (other, rank) = (ranks.remove(1), ranks.remove(0));
        let waiting = waits.then(|| sum(&pair[0]));
        let done = sum(&rank);
        // It ends with the device.
        let (never, after) = (rank.device.semaphore(0), rank.device.semaphore(0));
        rank.device.barrier(&never.at(1), &after.at(1)).unwrap();
        drop(pair);
        let (sender, receiver) = mpsc::channel();
        let begin = Instant::now();
        done.when_known(1, move |outcome| {
            drop(rank);
            sender.send(outcome.is_ok()).unwrap();
        });
        if succeeds {
            sum(&other).wait(1).unwrap();
        } else {
            let (send, recv) = (other.words(&[1; 4]), other.words(&[0; 4]));
            let mismatch = other.commands(BROADCAST, 0, (&send, &recv), 4).unwrap();
            other.execute(&mismatch, 1).unwrap_err();
        }
        assert_eq!(receiver.recv_timeout(SOON).unwrap(), succeeds);
        assert_eq!(after.wait(1).unwrap_err().code, Code::Cancelled);
        if let Some(waiting) = waiting {
            assert_eq!(waiting.wait(1).unwrap_err().code, Code::Cancelled);
        }
        assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    }
}

/// Running collectives have a moment to end by themselves.
#[test]
fn device_that_goes_waits_a_moment_for_a_rank_that_comes() {
    let mut ranks = mocks(2);
    let (other, gone) = (ranks.remove(1), ranks.remove(0));
    let done = sum(&gone);
    std::thread::scope(|scope| {
        scope.spawn(move || drop(gone));
        std::thread::sleep(Duration::from_millis(50));
        sum(&other).wait(1).unwrap();
    });
    done.wait(1).unwrap();
}

/// A program that exits while collectives wait: its devices exist, its threads wait, and a callback is registered.
#[test]
fn process_may_end_with_collectives_under_way() {
    const CHILD: &str = "DEPARTURES_OF_A_PROCESS";
    let name = "departures::process_may_end_with_collectives_under_way";
    let Ok(way) = std::env::var(CHILD) else {
        for way in ["exit", "return", "released"] {
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            let begin = Instant::now();
            // A program may leave objects at its exit.
            let options = std::env::var("ASAN_OPTIONS").unwrap_or_default();
            command.env("ASAN_OPTIONS", format!("{options}:detect_leaks=0"));
            let child = command.args([name, "--exact", "--nocapture"]).env(CHILD, way).output().unwrap();
            let text = String::from_utf8_lossy(&child.stderr);
            let code = if way == "exit" { 7 } else { 0 };
            assert_eq!(child.status.code(), Some(code), "{way}: {text}");
            assert!(begin.elapsed() < SOON, "{way}: {:?}", begin.elapsed());
        }
        return;
    };
    let ranks = ranks(&["mock://?heaps=2&collective_piece=8", "gaudi://emulated?collective_piece=8"]);
    let done = sum(&ranks[0]);
    let waits = done.clone();
    std::thread::spawn(move || waits.wait(1));
    done.when_known(1, drop);
    std::thread::sleep(Duration::from_millis(20));
    match way.as_str() {
        "exit" => std::process::exit(7),
        "return" => std::mem::forget((ranks, done)),
        _ => drop(ranks),
    }
}

const WORDS: usize = 48;

/// Fills, sums beside fills, copies and gathers: on memory of the rank's own, of the host, and of another device.
fn program(rank: &Rank, [send, recv, all, near, far]: &[Buffer; 5]) -> Result<Commands> {
    rank.device.record(0, |commands| {
        fill(commands, send, 1)?;
        fill(commands, far, 2)?;
        barrier(commands)?;
        collective(commands, &rank.channel, ALL_REDUCE, 0, (send, recv), WORDS)?;
        fill(commands, near, 3)?;
        barrier(commands)?;
        fill(commands, send, 4)?;
        fill(commands, far, 5)?;
        collective(commands, &rank.channel, ALL_GATHER, 0, (recv, all), WORDS)?;
        barrier(commands)?;
        fill(commands, recv, 6)
    })
}

fn memory(rank: &Rank, owner: &Device) -> [Buffer; 5] {
    let own = |words: usize| rank.device.local_buffer(4 * words);
    [own(WORDS), own(WORDS), own(2 * WORDS), rank.device.buffer(16), owner.local_buffer(16)]
}

/// A fault strikes each job of a device in turn, until there are no more jobs: its rank fails, and the other one
/// succeeds or gets the cause; all in time, and nothing is written afterwards.
fn fails_at_each_job(fault: &str, is_owner: bool) {
    const CANARY: u8 = 0xA5;
    for job in 1.. {
        let (fault, none) = (format!("&fault={fault}:{job}"), String::new());
        let (first, owners) = if is_owner { (&none, &fault) } else { (&fault, &none) };
        let card = |more: &str| format!("mock://?heaps=2&queues=2&collective_piece=64{more}");
        let ranks = ranks(&[&card(first), &card("")]);
        let owner = Device::open(&card(owners)).unwrap();
        let memory = ranks.iter().map(|rank| memory(rank, &owner)).collect::<Vec<_>>();
        let begin = Instant::now();
        let begun: Vec<Result> = ranks
            .iter()
            .zip(&memory)
            .map(|(rank, memory)| rank.execute(&program(rank, memory).unwrap(), 1))
            .collect();
        let ended: Vec<Result> = begun
            .into_iter()
            .zip(&ranks)
            .map(|(begun, rank)| begun.and_then(|()| rank.done.wait(1)))
            .collect();
        assert!(begin.elapsed() < SOON, "{fault}: {:?}", begin.elapsed());
        let near = &memory[0][3];
        if ended[0].is_err() {
            near.write(0, &[CANARY; 16]);
        }
        for (rank, ended) in ended.iter().enumerate() {
            let Err(error) = ended else { continue };
            assert!(error.text.contains("as fault="), "{fault}, rank {rank}: {}", error.text);
        }
        if ended[0].is_ok() && ended[1].is_ok() {
            assert!(job > 2, "{fault}: nothing has failed");
            // Reading takes jobs, of which the next may fail.
            let [_, recv, all, near, _] = &memory[1];
            assert_eq!((ranks[1].read(recv), ranks[1].read(all)), (vec![6; WORDS], vec![2; 2 * WORDS]));
            assert_eq!(near.read(), 3_u32.to_le_bytes().repeat(4));
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
        if ended[0].is_err() {
            assert_eq!(near.read(), [CANARY; 16], "{fault}: written afterwards");
        }
    }
}

#[test]
fn loss_of_a_device_in_any_of_its_jobs_is_reported_to_all_ranks() {
    fails_at_each_job("lose", false);
}

#[test]
fn loss_of_a_device_whose_memory_is_used_is_reported_to_all_ranks() {
    fails_at_each_job("lose", true);
}

#[test]
fn failure_of_any_copy_is_reported_to_all_ranks() {
    fails_at_each_job("fail:copy", false);
}

#[test]
fn failure_of_any_fill_is_reported_to_all_ranks() {
    fails_at_each_job("fail:fill", false);
}
