// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Jumps, lanes that part and meet, and what they do together.

use crate::support::{fault, kernel, launch, launch_in_order, run_body};
use emulator_cuda::simt::Fault;

/// Each lane counts to its number, by loops that end at different times, and meets the others for a sum.
#[test]
fn lanes_part_in_loops_and_meet_for_a_shuffle() {
    let body = "mov.u32 %r1, %tid.x;\nmov.u32 %r2, 0;\nmov.u32 %r3, 0;\n\
                $loop:\nsetp.ge.u32 %p1, %r3, %r1;\n@%p1 bra $out;\nadd.s32 %r2, %r2, %r3;\nadd.s32 %r3, %r3, 1;\n\
                bra.uni $loop;\n$out:\n\
                shfl.sync.bfly.b32 %r4, %r2, 16, 31, -1;\nadd.s32 %r2, %r2, %r4;\n\
                shfl.sync.bfly.b32 %r4, %r2, 8, 31, -1;\nadd.s32 %r2, %r2, %r4;\n\
                shfl.sync.bfly.b32 %r4, %r2, 4, 31, -1;\nadd.s32 %r2, %r2, %r4;\n\
                shfl.sync.bfly.b32 %r4, %r2, 2, 31, -1;\nadd.s32 %r2, %r2, %r4;\n\
                shfl.sync.bfly.b32 %r4, %r2, 1, 31, -1;\nadd.s32 %r2, %r2, %r4;\nst.u32 [%at], %r2;";
    let sum: u64 = (0..32).map(|n: u64| n * n.saturating_sub(1) / 2).sum();
    assert_eq!(run_body(body, 32, &[0]), [sum]);
}

#[test]
fn code_that_is_laid_out_backwards_runs() {
    let body = "mov.u32 %r1, %tid.x;\nmul.wide.u32 %d1, %r1, 4;\nadd.s64 %d1, %at, %d1;\nbra.uni $head;\n\
                $tail:\nadd.s32 %r2, %r2, 100;\nst.u32 [%d1], %r2;\nbra.uni $end;\n\
                $head:\nmov.u32 %r2, 1;\nsetp.lt.u32 %p1, %r1, 3;\n@%p1 bra $tail;\nmov.u32 %r2, 2;\n\
                @!%p1 bra $tail;\n$end:\nshfl.sync.idx.b32 %r3, %r2, 5, 31, -1;\n\
                setp.eq.u32 %p2, %r1, 0;\n@%p2 st.u32 [%at+32], %r3;";
    let found = run_body(body, 32, &[0; 16]);
    assert_eq!(found[0], 101 << 32 | 101);
    assert_eq!(found[1], 102 << 32 | 101);
    // Lane 8 stores there too, after or before: lanes that part have no order.
    assert!([102, 2].contains(&(found[4] & 0xffff_ffff)), "{found:?}");
}

#[test]
fn shuffles_take_lanes_of_their_segment() {
    for (mode, b, c, lane, wanted, inside) in [
        ("bfly", 1, 31, 4, 5, 1),
        ("up", 2, 0, 5, 3, 1),
        ("up", 6, 0, 5, 5, 0),
        ("down", 3, 31, 5, 8, 1),
        ("down", 30, 31, 5, 5, 0),
        ("idx", 7, 31, 5, 7, 1),
        // Segments of eight lanes.
        ("down", 3, 0x181f, 6, 6, 0),
        ("idx", 9, 0x181f, 17, 17, 1),
    ] {
        let body = format!(
            "mov.u32 %r1, %tid.x;\nmov.u32 %r2, %r1;\nshfl.sync.{mode}.b32 %r3|%p1, %r2, {b}, {c}, 0xffffffff;\n\
             selp.u32 %r4, 1, 0, %p1;\nsetp.eq.u32 %p2, %r1, {lane};\n@%p2 st.u32 [%at], %r3;\n\
             @%p2 st.u32 [%at+8], %r4;"
        );
        assert_eq!(run_body(&body, 32, &[99, 99]), [wanted, inside], "{mode} {b} {c:x} of {lane}");
    }
}

#[test]
fn votes_count_the_lanes_that_are_named() {
    let body = "mov.u32 %r1, %laneid;\nsetp.lt.u32 %p1, %r1, 4;\nvote.sync.ballot.b32 %r2, %p1, -1;\n\
                vote.sync.any.pred %p2, %p1, -1;\nvote.sync.all.pred %p3, %p1, -1;\n\
                vote.sync.uni.pred %p4, !%p1, -1;\n\
                selp.u32 %r3, 1, 0, %p2;\nselp.u32 %r4, 1, 0, %p3;\nselp.u32 %r5, 1, 0, %p4;\n\
                st.u32 [%at], %r2;\nst.u32 [%at+8], %r3;\nst.u32 [%at+16], %r4;\nst.u32 [%at+24], %r5;\n\
                activemask.b32 %r6;\nst.u32 [%at+32], %r6;\nbar.warp.sync -1;\nmembar.gl;\nfence.acq_rel.gpu;";
    assert_eq!(run_body(body, 8, &[0; 5]), [0xf, 1, 0, 0, 0xff]);
}

#[test]
fn special_registers_say_which_thread_it_is() {
    let text = kernel(
        "mov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %ntid.x;\nmov.u32 %r3, %tid.x;\nmad.lo.s32 %r4, %r1, %r2, %r3;\n\
         mov.u32 %r5, %nctaid.x;\nmov.u32 %r7, %warpid;\nmad.lo.s32 %r6, %r5, 1000, %r4;\n\
         mad.lo.s32 %r6, %r7, 10000, %r6;\nmul.wide.u32 %d1, %r4, 8;\nadd.s64 %d1, %at, %d1;\nst.u32 [%d1], %r6;",
    );
    let mut words = vec![0; 120];
    launch(&text, 3, 40, &mut words).expect("it runs");
    for (at, word) in (0..).zip(words) {
        assert_eq!(word, 3000 + at + if at % 40 >= 32 { 10000 } else { 0 });
    }
}

#[test]
fn what_lanes_cannot_do_together_is_a_fault() {
    for (body, threads, wanted) in [
        (
            "mov.u32 %r1, %tid.x;\nsetp.lt.u32 %p1, %r1, 16;\n@%p1 bra $skip;\nbar.sync 0;\n$skip:",
            40,
            "returned",
        ),
        ("mov.u32 %r1, %tid.x;\nsetp.lt.u32 %p1, %r1, 16;\n@%p1 bar.sync 0;", 32, "some lanes"),
        (
            "mov.u32 %r1, %tid.x;\nsetp.lt.u32 %p1, %r1, 16;\n@%p1 bra $other;\nbar.sync 0;\nbra.uni $end;\n\
             $other:\nbar.sync 0;\n$end:",
            32,
            "different barriers",
        ),
        (
            "mov.u32 %r1, %tid.x;\nsetp.lt.u32 %p1, %r1, 16;\n@%p1 bra $other;\n\
             shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;\n\
             bra.uni $end;\n$other:\nbar.sync 0;\n$end:",
            32,
            "do not come",
        ),
        ("shfl.sync.bfly.b32 %r2, %r1, 1, 31, 2;", 32, "not one of those"),
    ] {
        let trap = fault(body, threads, &[0]);
        assert!(matches!(trap.fault, Fault::Stuck(text) if text.contains(wanted)), "{trap}\n{body}");
    }
    assert_eq!(fault("trap;", 1, &[0]).fault, Fault::Trap);
    assert_eq!(fault("$loop:\nbra.uni $loop;", 1, &[0]).fault, Fault::Endless);
}

#[test]
fn lanes_that_returned_are_not_waited_for_by_a_shuffle() {
    let body = "mov.u32 %r1, %tid.x;\nsetp.ge.u32 %p1, %r1, 16;\n@%p1 exit;\n\
                shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;\nsetp.eq.u32 %p2, %r1, 0;\n@%p2 st.u32 [%at], %r2;";
    assert_eq!(run_body(body, 32, &[9]), [1]);
}

/// Each block notes when it ran: a seed changes the order, and each block runs once.
#[test]
fn blocks_run_once_in_the_order_of_a_seed() {
    let text = kernel(
        "atom.global.add.u64 %d1, [%at], 1;\nmov.u32 %r1, %ctaid.x;\nmov.u32 %r2, %ctaid.y;\nmov.u32 %r3, %nctaid.x;\n\
         mov.u32 %r5, %ctaid.z;\nmov.u32 %r6, %nctaid.y;\nmad.lo.s32 %r2, %r5, %r6, %r2;\n\
         mad.lo.s32 %r4, %r2, %r3, %r1;\nmul.wide.u32 %d2, %r4, 8;\nadd.s64 %d2, %at, %d2;\nst.u64 [%d2+8], %d1;",
    );
    let mut orders = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let mut words = vec![0; 25];
        launch_in_order(&text, [4, 3, 2], 1, seed, &mut words).expect("it runs");
        let order = words.split_off(1);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..24).collect::<Vec<u64>>());
        assert!(seed > 0 || order == sorted);
        orders.insert(order);
    }
    assert!(orders.len() > 10, "{}", orders.len());
}
