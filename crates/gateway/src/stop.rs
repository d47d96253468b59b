//! SIGTERM and SIGINT: the first asks for an orderly end, the second ends the process there and then.
//!
//! The second is no worse than a crash, which every moment of the gateway's has to survive: nothing is
//! finished, undone or told to anybody, and the next start goes on from what is recorded.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

/// Answers with what resolves at the first signal.
///
/// They are waited for by a thread of their own, so that no worker that hangs can keep the second one
/// from ending it.
///
/// # Errors
/// When the process may not have what that takes.
pub(crate) fn first_signal() -> io::Result<impl Future<Output = ()>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    // Here and not in the thread, so that from the return on no signal is lost.
    let mut signals = {
        let _entered = runtime.enter();
        Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        }
    };
    let (asked, first) = oneshot::channel();
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            runtime.block_on(async move {
                signals.next().await;
                // Nobody waits where the gateway ends for a reason of its own.
                let _ = asked.send(());
                let signal = signals.next().await;
                // Without a word: whoever reads the log may be what hangs.
                std::process::exit(128 + signal.as_raw_value());
            });
        })?;
    Ok(async move {
        if first.await.is_err() {
            // The thread is gone, and with it whoever could ask: only its end ends a gateway then.
            std::future::pending::<()>().await;
        }
    })
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    async fn next(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.interrupt.recv() => SignalKind::interrupt(),
        }
    }
}
