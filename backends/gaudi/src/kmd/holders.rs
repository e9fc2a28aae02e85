// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What keeps the file of a card open besides its descriptor.
//!
//! A dma-buf of a card's memory holds the card's file, and so does a mapping of it in another card. A reset waits for that file,
//! and the kernel kills who has opened it. So whoever holds one is told when the card is lost.

use parking_lot::Mutex;
use std::sync::Weak;

/// Something that holds a dma-buf of a card, and can do without.
pub(crate) trait Holder: Send + Sync {
    /// The card is lost: closes the dma-buf, or ends its mapping.
    fn let_go(&self);
}

/// Whoever holds dma-bufs of one card.
#[derive(Default)]
pub(super) struct Holders(Mutex<State>);

#[derive(Default)]
struct State {
    is_lost: bool,
    holders: Vec<Weak<dyn Holder>>,
}

impl Holders {
    /// One more, who is told at once if the card has been lost meanwhile.
    pub(super) fn add(&self, holder: Weak<dyn Holder>) {
        {
            let mut state = self.0.lock();
            if !state.is_lost {
                state.holders.retain(|known| known.strong_count() > 0);
                state.holders.push(holder);
                return;
            }
        }
        tell(&holder);
    }

    /// Tells them all, once.
    pub(super) fn lose(&self) {
        let holders = {
            let mut state = self.0.lock();
            state.is_lost = true;
            std::mem::take(&mut state.holders)
        };
        holders.iter().for_each(tell);
    }
}

/// Not under the lock: it may call the kernel, and what it drops may be a card.
fn tell(holder: &Weak<dyn Holder>) {
    if let Some(holder) = holder.upgrade() {
        holder.let_go();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[derive(Default)]
    struct Told(AtomicU32);

    impl Holder for Told {
        fn let_go(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn everybody_is_told_once_and_who_comes_late_at_once() {
        let (holders, early, late) =
            (Holders::default(), Arc::new(Told::default()), Arc::new(Told::default()));
        let weak = |told: &Arc<Told>| {
            let holder: Arc<dyn Holder> = told.clone();
            Arc::downgrade(&holder)
        };
        holders.add(weak(&early));
        holders.add(weak(&Arc::new(Told::default())));
        assert_eq!(early.0.load(Ordering::Relaxed), 0);
        holders.lose();
        holders.lose();
        holders.add(weak(&late));
        assert_eq!((early.0.load(Ordering::Relaxed), late.0.load(Ordering::Relaxed)), (1, 1));
    }
}
