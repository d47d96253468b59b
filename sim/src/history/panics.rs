//! Panics inside a history are kept for it instead of being printed.

use std::cell::{Cell, RefCell};
use std::sync::Once;

thread_local! {
    static IN_A_HISTORY: Cell<bool> = const { Cell::new(false) };
    static KEPT: RefCell<Option<String>> = const { RefCell::new(None) };
}

static HOOK: Once = Once::new();

/// From here on, on this thread.
pub(crate) fn keep() {
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if IN_A_HISTORY.get() {
                let text = info.to_string();
                KEPT.with_borrow_mut(|kept| kept.get_or_insert(text).len());
            } else {
                before(info);
            }
        }));
    });
    KEPT.set(None);
    IN_A_HISTORY.set(true);
}

pub(crate) fn keep_no_more() {
    IN_A_HISTORY.set(false);
}

pub(crate) fn take() -> Option<String> {
    KEPT.take()
}
