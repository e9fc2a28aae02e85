// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! Graphs: operations with edges, and the orders that these allow.

use super::status::{Error, Outcome};
use super::stream::Op;
use crate::random::Random;
use std::collections::HashMap;

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
            let is_known = self.nodes.iter().rev().any(|node| node.handle == *before);
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
        // Nodes are added behind known ones.
        if seed == 0 {
            return self.nodes.iter().collect();
        }
        let mut behind: HashMap<u64, Vec<usize>> = HashMap::new();
        let mut missing: Vec<usize> = self.nodes.iter().map(|node| node.after.len()).collect();
        for (at, node) in self.nodes.iter().enumerate() {
            node.after.iter().for_each(|before| behind.entry(*before).or_default().push(at));
        }
        let mut random = Random::new(seed);
        let mut ready: Vec<usize> =
            missing.iter().enumerate().filter(|(_, missing)| **missing == 0).map(|(at, _)| at).collect();
        let mut done = Vec::new();
        while !ready.is_empty() {
            let pick = usize::try_from(random.below(ready.len() as u64)).unwrap_or(0);
            let Some(node) = self.nodes.get(ready.swap_remove(pick)) else { break };
            done.push(node);
            for at in behind.remove(&node.handle).unwrap_or_default() {
                let Some(missing) = missing.get_mut(at) else { continue };
                *missing -= 1;
                if *missing == 0 {
                    ready.push(at);
                }
            }
        }
        done
    }
}
