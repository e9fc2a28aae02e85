// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! What keeps the file of a card open besides its descriptor.
//!
//! A dma-buf of a card's memory holds the card's file, and so does a mapping of it in another card. A reset waits for
//! that file, and the kernel kills the process that has opened it. So a holder of one is told when the card is lost.

use parking_lot::Mutex;
use std::sync::Weak;

/// Something that holds a dma-buf of a card, and can do without.
pub(crate) trait DmabufHolder: Send + Sync {
    /// The card is lost, and this is why: closes the dma-buf, or ends its mapping.
    fn release(&self, why: &str);
}

/// The holders of one card's dma-bufs.
#[derive(Default)]
pub(super) struct DmabufHolders(Mutex<HoldersState>);

#[derive(Default)]
struct HoldersState {
    /// Why the card is lost, if it is.
    lost: Option<String>,
    holders: Vec<Weak<dyn DmabufHolder>>,
}

impl DmabufHolders {
    /// Adds a holder, which is told at once if the card has been lost meanwhile.
    pub(super) fn add(&self, holder: Weak<dyn DmabufHolder>) {
        let why = {
            let mut state = self.0.lock();
            let Some(why) = state.lost.clone() else {
                state.holders.retain(|known| known.strong_count() > 0);
                state.holders.push(holder);
                return;
            };
            why
        };
        notify(&holder, &why);
    }

    /// Tells them all, once. The first cause is the one.
    pub(super) fn lose(&self, why: &str) {
        let (holders, why) = {
            let mut state = self.0.lock();
            let why = state.lost.get_or_insert_with(|| why.to_owned()).clone();
            (std::mem::take(&mut state.holders), why)
        };
        holders.iter().for_each(|holder| notify(holder, &why));
    }
}

/// Not under the lock: it may call the kernel, and what it drops may be a card.
fn notify(holder: &Weak<dyn DmabufHolder>, why: &str) {
    if let Some(holder) = holder.upgrade() {
        holder.release(why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[derive(Default)]
    struct Recorder(Mutex<Vec<String>>);

    impl DmabufHolder for Recorder {
        fn release(&self, why: &str) {
            self.0.lock().push(why.to_owned());
        }
    }

    #[test]
    fn everybody_is_told_once_and_who_comes_late_at_once() {
        let (holders, early, late) =
            (DmabufHolders::default(), Arc::new(Recorder::default()), Arc::new(Recorder::default()));
        let weak = |recorder: &Arc<Recorder>| {
            let holder: Arc<dyn DmabufHolder> = recorder.clone();
            Arc::downgrade(&holder)
        };
        holders.add(weak(&early));
        holders.add(weak(&Arc::new(Recorder::default())));
        assert!(early.0.lock().is_empty());
        holders.lose("reset");
        holders.lose("closed");
        holders.add(weak(&late));
        assert_eq!(
            (&**early.0.lock(), &**late.0.lock()),
            (&["reset".to_owned()][..], &["reset".to_owned()][..])
        );
    }
}
