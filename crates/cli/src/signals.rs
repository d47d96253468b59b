//! The signals that a person or a service manager sends us.
//!
//! A command that leaves nothing behind takes none of them: the kernel ends it at once, also where
//! it waits for a reader of its output. Only what has something to pass on, to tell or to remove
//! asks for them here, and when that is done they end us as before: the handlers stay, so a thread of
//! its own does it.

use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

/// Three signals within this are one person's insisting.
const INSISTING: Duration = Duration::from_secs(3);

/// How many there are that take the signals.
static TAKERS: AtomicUsize = AtomicUsize::new(0);
static RELEASED: Once = Once::new();

pub(crate) enum Asked {
    /// By number; it would have ended us.
    Signal(i32),
    Resize,
}

/// The signals that would end us, and the window's size.
pub(crate) struct Signals {
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
    hang_up: Option<Signal>,
    quit: Option<Signal>,
    window: Option<Signal>,
}

impl Signals {
    /// From here on these signals come here instead of ending us, until this is dropped.
    pub(crate) fn new() -> io::Result<Self> {
        let signals = Self::listen()?;
        TAKERS.fetch_add(1, Ordering::AcqRel);
        Ok(signals)
    }

    fn listen() -> io::Result<Self> {
        let ignored = ignored();
        let listen = |kind: SignalKind| {
            // Whoever started us asked that it does nothing: nohup, or a shell's background job.
            let kept_off = ignored & (1 << (kind.as_raw_value() - 1)) != 0;
            (!kept_off).then(|| signal(kind)).transpose()
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
            quit: listen(SignalKind::quit())?,
            window: listen(SignalKind::window_change())?,
        })
    }

    /// Can be dropped and called again without losing anything.
    pub(crate) async fn next(&mut self) -> Asked {
        tokio::select! {
            () = received(&mut self.interrupt) => Asked::Signal(INTERRUPT),
            () = received(&mut self.terminate) => Asked::Signal(TERMINATE),
            () = received(&mut self.hang_up) => Asked::Signal(HANG_UP),
            () = received(&mut self.quit) => Asked::Signal(QUIT),
            () = received(&mut self.window) => Asked::Resize,
        }
    }

    /// The next that asks us to end.
    pub(crate) async fn end(&mut self) -> i32 {
        loop {
            match self.next().await {
                Asked::Signal(number) => return number,
                Asked::Resize => {}
            }
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        if TAKERS.fetch_sub(1, Ordering::AcqRel) == 1 {
            RELEASED.call_once(release);
        }
    }
}

/// Lets the signals end us again whenever nobody takes them. Where there is no room for that they do
/// nothing, and the command is at its end anyway.
fn release() {
    let begun = std::thread::Builder::new().name("signals".to_owned());
    let _ = begun.spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let Ok(runtime) = { runtime }.enable_io().build() else {
            return;
        };
        runtime.block_on(async {
            let Ok(signals) = Signals::listen() else {
                return;
            };
            // It takes none that another has asked for.
            let mut signals = std::mem::ManuallyDrop::new(signals);
            loop {
                let signal = signals.end().await;
                if TAKERS.load(Ordering::Acquire) == 0 {
                    std::process::exit(i32::from(exit_code(signal)));
                }
            }
        });
    });
}

const INTERRUPT: i32 = SignalKind::interrupt().as_raw_value();
const TERMINATE: i32 = SignalKind::terminate().as_raw_value();
const HANG_UP: i32 = SignalKind::hangup().as_raw_value();
const QUIT: i32 = SignalKind::quit().as_raw_value();

/// Whether whoever sends it wants us gone, rather than the process that we carry.
pub(crate) const fn is_farewell(signal: i32) -> bool {
    signal == TERMINATE || signal == HANG_UP
}

/// As a shell reports what a signal ended.
pub(crate) fn exit_code(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(1)
}

async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// The signals that do nothing to this process, a bit each; those that cannot be found out end it.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .unwrap_or_default();
    u64::from_str_radix(mask.trim(), 16).unwrap_or(0)
}

/// Three signals in quick succession leave a process that does not end.
#[derive(Default)]
pub(crate) struct Insisting {
    earlier: [Option<Instant>; 2],
}

impl Insisting {
    /// Whether the signal that came now is the third.
    pub(crate) fn leaves(&mut self) -> bool {
        let now = Instant::now();
        let [first, second] = self.earlier;
        self.earlier = [second, Some(now)];
        first.is_some_and(|first| now.duration_since(first) <= INSISTING)
    }
}
