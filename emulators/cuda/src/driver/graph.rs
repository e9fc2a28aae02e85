// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Graphs: operations with edges, and the orders that these allow.

use super::status::{Error, Outcome};
use super::stream::Op;
use crate::random::Random;

/// What a node does.
#[derive(Clone)]
pub enum Work {
    /// An operation of a stream.
    Op(Op),
    /// A record of an event, by its handle.
    Record(u64),
}

/// A node.
#[derive(Clone)]
pub struct Node {
    /// Its handle.
    pub handle: u64,
    /// What it does.
    pub work: Work,
    /// The handles of the nodes before it.
    pub after: Vec<u64>,
}

/// A graph.
#[derive(Clone, Default)]
pub struct Graph {
    /// The context that made it.
    pub context: u64,
    /// Its nodes.
    pub nodes: Vec<Node>,
}

impl Graph {
    /// Adds a node behind others.
    ///
    /// # Errors
    /// A node before it is not of this graph, or named twice.
    pub fn add(&mut self, handle: u64, work: Work, after: Vec<u64>) -> Outcome {
        for (at, before) in after.iter().enumerate() {
            let is_known = self.nodes.iter().any(|node| node.handle == *before);
            let is_twice = after.iter().take(at).any(|other| other == before);
            if !is_known || is_twice {
                return Err(Error::INVALID_VALUE);
            }
        }
        self.nodes.push(Node { handle, work, after });
        Ok(())
    }

    /// The nodes in an order that the edges allow; which one, a seed says.
    #[must_use]
    pub fn order(&self, seed: u64) -> Vec<&Node> {
        let mut random = Random::new(seed);
        let mut left: Vec<&Node> = self.nodes.iter().collect();
        let mut done = Vec::new();
        while !left.is_empty() {
            let is_ready = |node: &&Node| {
                node.after.iter().all(|before| done.iter().any(|it: &&Node| it.handle == *before))
            };
            let ready: Vec<usize> =
                left.iter().enumerate().filter(|(_, node)| is_ready(node)).map(|(at, _)| at).collect();
            let pick = if seed == 0 { 0 } else { random.below(ready.len() as u64) };
            // Nodes are added behind known ones, so that one is always ready.
            let Some(at) = usize::try_from(pick).ok().and_then(|pick| ready.get(pick)) else { break };
            done.push(left.remove(*at));
        }
        done
    }
}
