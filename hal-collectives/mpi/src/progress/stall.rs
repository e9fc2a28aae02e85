// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! A process that stood still: what it received meanwhile counts only when the ranks that it received from have
//! answered.
//!
//! A rank that has failed sends a notice, and keeps the memory of its operations for [`GRACE`] after that. A process
//! that polls all the time has the notice by then. One that stood still asks a *question*: the answer comes behind the
//! notice, so what the process receives until the question is [`GRACE`] old is what was sent. If it stands still again,
//! it asks again then, and not before: a process that gets a processor now and then only would throw each answer away.

use super::GRACE;
use crate::notice::Generation;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// A process that has not polled for so long has stood still.
const STILL: Duration = Duration::from_millis(100);

/// How long a process waits for answers: thousands of messages may be before one, and little of a processor for them. A
/// rank that has ended gives none.
const CATCH_UP: Duration = Duration::from_secs(5);

/// See the [module documentation](self).
pub(super) struct Stall {
    /// When this process has tested notices and operations last.
    polled: Instant,
    question: Option<Question>,
    /// The number of questions: answers say to which.
    count: u64,
}

struct Question {
    asked: Instant,
    /// The ranks of the job that have not answered.
    missing: BTreeSet<u32>,
    /// The process has stood still since.
    stood_still: bool,
    /// How long it has waited for those ranks, also with questions before this one, without standing still.
    waited: Duration,
}

impl Stall {
    pub(super) fn new() -> Self {
        Self { polled: Instant::now(), question: None, count: 0 }
    }

    pub(super) fn polled(&self) -> Instant {
        self.polled
    }

    /// Notices and operations were tested. True if this process stood still and is to ask.
    pub(super) fn polls(&mut self, now: Instant) -> bool {
        let stood_still = self.stands_still(now);
        let waited = if stood_still { Duration::ZERO } else { now - self.polled };
        self.polled = now;
        match &mut self.question {
            None => stood_still,
            Some(question) => {
                question.stood_still |= stood_still;
                question.waited += waited;
                question.stood_still && now - question.asked >= GRACE
            }
        }
    }

    fn stands_still(&self, now: Instant) -> bool {
        now - self.polled >= STILL
    }

    /// Some ranks of the job are asked. Returns the number of the question.
    pub(super) fn ask(&mut self, missing: BTreeSet<u32>, now: Instant) -> Generation {
        self.count += 1;
        let unanswered = self.question.take().filter(|question| !question.missing.is_empty());
        let waited = unanswered.map_or(Duration::ZERO, |question| question.waited);
        self.question = Some(Question { asked: now, missing, stood_still: false, waited });
        Generation { number: self.count, generation: 0 }
    }

    /// A rank of the job has answered a question.
    pub(super) fn answered(&mut self, question: Generation, from: u32) {
        if let Some(Question { missing, .. }) =
            self.question.as_mut().filter(|_| question.number == self.count)
        {
            missing.remove(&from);
        }
    }

    /// Ends when all have answered, or had their time.
    pub(super) fn end_if_over(&mut self) {
        let is_over = |Question { missing, stood_still, waited, .. }: &mut Question| {
            !*stood_still && missing.is_empty() || *waited >= CATCH_UP
        };
        self.question.take_if(is_over);
    }

    /// True if what was received from some ranks until now is what they sent.
    pub(super) fn believes(&self, mut peers: impl Iterator<Item = u32>, now: Instant) -> bool {
        match &self.question {
            Some(Question { missing, .. }) if peers.any(|peer| missing.contains(&peer)) => false,
            Some(Question { asked, .. }) if now - *asked < GRACE => true,
            question => {
                !self.stands_still(now) && question.as_ref().is_none_or(|question| !question.stood_still)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that polls at these times, in milliseconds, and has an answer of its only peer after some of them: the
    /// polls at which it asks, and those behind which it believes what came.
    fn polls(at: &[u64], answered_after: &[u64]) -> (Vec<u64>, Vec<u64>) {
        let mut stall = Stall::new();
        let begin = stall.polled();
        let (mut asks, mut believes, mut question) = (Vec::new(), Vec::new(), None);
        for &at in at {
            let now = begin + Duration::from_millis(at);
            if stall.believes(std::iter::once(1), now) {
                believes.push(at);
            }
            if stall.polls(now) {
                asks.push(at);
                question = Some(stall.ask(BTreeSet::from([1]), now));
            }
            stall.end_if_over();
            if let Some(question) = question.filter(|_| answered_after.contains(&at)) {
                stall.answered(question, 1);
            }
        }
        (asks, believes)
    }

    #[test]
    fn process_that_stood_still_believes_what_came_until_its_question_is_old_and_what_comes_after_that_when_it_polls()
     {
        // It has the answer at once.
        assert_eq!(polls(&[50, 200, 210, 220, 310], &[200]), (vec![200], vec![50, 210, 220, 310]));
        // It has none, until its time is over.
        let often: Vec<u64> = (150..5_400).step_by(90).collect();
        assert_eq!(polls(&often, &[]), (vec![150], vec![5_280, 5_370]));
        // It stands still again before it has seen the answer, which is from before that.
        let still = [150, 390, 395, 410, 420, 430];
        assert_eq!(polls(&still, &[150]), (vec![150, 410], vec![390, 395]));
        assert_eq!(polls(&still, &[150, 410]), (vec![150, 410], vec![390, 395, 420, 430]));
    }

    /// The others may have ended.
    #[test]
    fn process_that_stands_still_again_and_again_does_not_wait_for_answers_for_ever() {
        let often: Vec<u64> = (0..30_000).step_by(50).filter(|at| at % 600 > 150).collect();
        let (asks, believes) = polls(&often, &[]);
        assert!(asks.len() > 2 && believes.iter().any(|&at| at > 5_000), "{asks:?}, {believes:?}");
    }

    #[test]
    fn what_came_from_several_ranks_is_believed_when_all_of_them_have_answered() {
        let mut stall = Stall::new();
        let now = stall.polled();
        let question = stall.ask(BTreeSet::from([1, 2]), now);
        let mut believes_behind = |answer| {
            stall.answered(question, answer);
            stall.believes([1, 2].into_iter(), now)
        };
        assert_eq!([1, 2].map(&mut believes_behind), [false, true]);
    }

    #[test]
    fn answer_to_an_earlier_question_is_none_to_this_one() {
        let mut stall = Stall::new();
        let now = stall.polled();
        let [before, _] = [(); 2].map(|()| stall.ask(BTreeSet::from([1]), now));
        stall.answered(before, 1);
        assert!(!stall.believes(std::iter::once(1), now));
    }
}
