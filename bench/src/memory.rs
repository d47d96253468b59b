//! A process inside that holds memory which is not zeros.

use overwinter_client::Client;

/// What is done with the memory once it is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It is kept, and `/workspace/tick` is taken away whenever it is there.
    Tick,
    /// It is kept until `/workspace/touch` is there; then it is read once, and `/workspace/touched` made.
    Touch,
}

/// A script for a shell of busybox: one buffer of `mib` MiB, 16 MiB of noise and 16 of a program in
/// turns: none of it is zeros, and it packs to about three quarters.
/// It ends when it is held, and what holds it goes on.
#[must_use]
pub fn held(mib: u32, then: Then) -> String {
    let pairs = mib.div_ceil(32);
    // A little less than all of it, also where some was swapped.
    let least = u64::from(mib) * 1000;
    let then = match then {
        Then::Tick => "while true; do [ -e tick ] && rm tick; usleep 1000; done",
        Then::Touch => {
            "until [ -e touch ]; do usleep 500; done; cat > /dev/null; rm touch; echo > touched"
        }
    };
    format!(
        "cd /workspace; rm -f ready touch touched; \
         fill() {{ n=0; while [ $n -lt {pairs} ]; do n=$((n+1)); head -c 16777216 /dev/urandom; \
         while cat /bin/busybox; do :; done 2> /dev/null | head -c 16777216; done; }}; \
         (fill | dd bs={mib}M count=1 iflag=fullblock 2> /dev/null | ({then})) > /dev/null 2>&1 < /dev/null & \
         until [ \"$(awk '/VmRSS|VmSwap/ {{ n += $2 }} END {{ print n }}' /proc/$(pidof dd)/status)\" -gt {least} ]; \
         do sleep 0.05; done; touch ready"
    )
}

/// Runs a script to its end.
///
/// # Errors
/// When it ends otherwise than well.
pub async fn run(client: &Client, sandbox: &str, script: &str) -> anyhow::Result<()> {
    let command = ["/bin/sh", "-c", script];
    let ran = client.command(sandbox, command).run().await?;
    anyhow::ensure!(ran.exit.code == 0, "it ended with {}", ran.exit.code);
    Ok(())
}
