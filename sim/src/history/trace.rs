//! All that happens, in one hash: two runs of one seed are the same history if and only if it is the
//! same.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};

use super::time::VirtualTime;

/// Lines that are shown with a violation.
const KEPT: usize = 60;

#[derive(Clone)]
pub(crate) struct Trace {
    inner: Arc<Mutex<Inner>>,
    time: VirtualTime,
}

struct Inner {
    hasher: Sha256,
    events: u64,
    print: bool,
    line: String,
    last: VecDeque<String>,
}

impl Trace {
    pub(crate) fn new(time: VirtualTime, print: bool) -> Self {
        Self {
            inner: Arc::new(Mutex::new(Inner {
                hasher: Sha256::new(),
                events: 0,
                print,
                line: String::new(),
                last: VecDeque::new(),
            })),
            time,
        }
    }

    pub(crate) fn note(&self, what: fmt::Arguments<'_>) {
        let now = self.time.now().as_micros();
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let inner = &mut *inner;
        inner.line.clear();
        // Writing to a string does not fail.
        let _ = writeln!(inner.line, "{:>12} {what}", now);
        inner.hasher.update(inner.line.as_bytes());
        inner.events += 1;
        if inner.print {
            print!("{}", inner.line);
        }
        if inner.last.len() == KEPT {
            inner.last.pop_front();
        }
        inner.last.push_back(inner.line.clone());
    }

    pub(crate) fn events(&self) -> u64 {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.events
    }

    pub(crate) fn last(&self) -> String {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.last.iter().map(String::as_str).collect()
    }

    pub(crate) fn hash(&self) -> String {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let digest = inner.hasher.clone().finalize();
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
