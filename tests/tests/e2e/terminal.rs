//! A shell inside, on a terminal.

use std::process::Stdio;

use anyhow::{Context, ensure};
use overwinter_client::{Client, Depth};
use overwinter_tests::Gateway;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::{STUCK, suspend, with_sandbox};

/// The command on a terminal of 33 rows and 77 columns, which script(1) gives it.
struct Terminal {
    child: Child,
    keys: ChildStdin,
    screen: ChildStdout,
    seen: String,
}

impl Terminal {
    fn open(gateway: &Gateway, arguments: &[&str]) -> anyhow::Result<Self> {
        let command = gateway.cli(arguments)?;
        let command = command.as_std();
        let words: Vec<_> = std::iter::once(command.get_program())
            .chain(command.get_args())
            .map(|word| format!("'{}'", word.to_string_lossy()))
            .collect();
        let mut child = Command::new("script")
            .args([
                "-qefc",
                &format!("tty; stty rows 33 cols 77; {}", words.join(" ")),
                "/dev/null",
            ])
            .env("TERM", "vt100")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("script(1) cannot be run")?;
        let keys = child.stdin.take().context("no stdin")?;
        let screen = child.stdout.take().context("no stdout")?;
        Ok(Self {
            child,
            keys,
            screen,
            seen: String::new(),
        })
    }

    /// Gives the window another size, as a person who drags its corner does. `tty`: its device.
    async fn resizes(&self, tty: &str, rows: u32, columns: u32) -> anyhow::Result<()> {
        let (rows, columns) = (rows.to_string(), columns.to_string());
        let mut stty = Command::new("stty");
        stty.args(["-F", tty, "rows", &rows, "cols", &columns]);
        ensure!(stty.status().await?.success(), "{tty} has no size");
        Ok(())
    }

    async fn types(&mut self, keys: &str) -> anyhow::Result<()> {
        Ok(self.keys.write_all(keys.as_bytes()).await?)
    }

    /// Reads until this stands on the screen; answers with what came before it, which is forgotten.
    async fn shows(&mut self, text: &str) -> anyhow::Result<String> {
        let mut buffer = [0; 4096];
        loop {
            if let Some(at) = self.seen.find(text) {
                let before = self.seen[..at].to_owned();
                self.seen.drain(..at + text.len());
                return Ok(before);
            }
            let read = tokio::time::timeout(STUCK, self.screen.read(&mut buffer)).await;
            let read = read.with_context(|| format!("no {text:?} in {:?}", self.seen))??;
            ensure!(read > 0, "it ended without {text:?}: {:?}", self.seen);
            self.seen
                .push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
    }

    async fn ends(mut self) -> anyhow::Result<i32> {
        let mut rest = Vec::new();
        let ended = async {
            self.screen.read_to_end(&mut rest).await?;
            self.child.wait().await
        };
        let status = tokio::time::timeout(STUCK, ended)
            .await
            .context("it does not end")??;
        status.code().context("a signal ended it")
    }
}

#[tokio::test]
async fn connect_is_a_shell_on_a_terminal_that_outlives_a_freeze() -> anyhow::Result<()> {
    let (gateway, client): (Gateway, Client) = with_sandbox("box").await?;
    let mut terminal = Terminal::open(&gateway, &["sandbox", "connect", "box"])?;
    // The terminal that script(1) made, here.
    let own = terminal.shows("\n").await?;
    terminal.shows("/workspace").await?;
    // What is typed is echoed as typed; the answers are not.
    terminal.types("stty size; echo $TERM; tty\n").await?;
    terminal.shows("33 77").await?;
    terminal.shows("vt100").await?;
    terminal.shows("/dev/pts/").await?;
    terminal.resizes(own.trim(), 44, 111).await?;
    terminal
        .types("until [ \"$(stty size)\" = '44 111' ]; do usleep 1000; done; stty size\n")
        .await?;
    terminal.shows("\n44 111").await?;
    // Ctrl-C reaches the program, not the command.
    terminal.types("echo be''gun; sleep 600\n").await?;
    terminal.shows("begun").await?;
    terminal.types("\x03").await?;
    terminal.types("echo still=$((40+2))\n").await?;
    terminal.shows("still=42").await?;
    terminal.types("x=remembered\n").await?;
    suspend(&client, "box", Depth::Freeze).await?;
    terminal.shows("the sandbox sleeps").await?;
    client.resume("box").wait().await?;
    terminal.shows("this goes on").await?;
    terminal.types("echo $x-$((1+1))\n").await?;
    terminal.shows("remembered-2").await?;
    terminal.types("exit 9\n").await?;
    ensure!(terminal.ends().await? == 9);
    gateway.end().await
}

#[tokio::test]
async fn exec_with_a_terminal_has_one_and_gives_its_code() -> anyhow::Result<()> {
    let (gateway, client) = with_sandbox("box").await?;
    let mut terminal = Terminal::open(
        &gateway,
        &[
            "sandbox",
            "exec",
            "-t",
            "box",
            "--",
            "sh",
            "-c",
            "tty && stty size && read line && echo got=$line && exit 5",
        ],
    )?;
    terminal.shows("/dev/pts/").await?;
    terminal.shows("/dev/pts/").await?;
    terminal.shows("33 77").await?;
    terminal.types("a line\n").await?;
    terminal.shows("got=a line").await?;
    ensure!(terminal.ends().await? == 5);
    // Without one it has none.
    let ran = client
        .command("box", ["sh", "-c", "tty; exit 0"])
        .run()
        .await?;
    ensure!(ran.stdout.as_ref() == b"not a tty\n", "{ran:?}");
    gateway.end().await
}
