// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

//! The holders of a card's dma-bufs, which release them when the card is lost.
//!
//! A dma-buf of a card's memory keeps the card's file open, and so does a mapping of it in another card. A reset waits
//! for that file, and the kernel kills the process that has opened it. So each holder is notified of the loss.

use parking_lot::Mutex;
use std::sync::Weak;

/// Something that holds a dma-buf of a card, and can do without.
pub(crate) trait DmabufHolder: Send + Sync {
    /// Closes the dma-buf, or ends its mapping, because the card is lost.
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
    /// Adds a holder. It is notified at once if the card is lost already.
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

    /// Notifies each holder once, with the first cause.
    pub(super) fn lose(&self, why: &str) {
        let (holders, why) = {
            let mut state = self.0.lock();
            let why = state.lost.get_or_insert_with(|| why.to_owned()).clone();
            (std::mem::take(&mut state.holders), why)
        };
        holders.iter().for_each(|holder| notify(holder, &why));
    }
}

/// Notifies one holder. The caller holds no lock: the holder may call the kernel or drop a card.
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
    fn each_holder_is_notified_once_and_a_late_one_at_once() {
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
