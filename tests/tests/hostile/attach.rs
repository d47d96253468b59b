//! Whoever has stolen what a supervisor shows, and whoever dials without it: from inside, and from
//! the host, on the socket that is one sandbox's own.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use overwinter_client::{Depth, Phase, Sandbox};
use serde_json::json;

use crate::attack::{self, check};
use crate::dial::{Answer, SUPERVISOR, Stolen, dial, talk};
use crate::stage::{Image, Stage, has_gvisor, has_python};

const PROGRAM: &str = include_str!("programs/attach.py");
/// More than the gateway gives a head, on a machine with much to do.
const LONG: Duration = Duration::from_secs(15);
/// Of the gateway for one sandbox, with some to spare for calls of the test's own.
const CONNECTIONS: usize = 24;

/// Whether PID 1 is the one that was attached, and still serves.
async fn is_served(stage: &Stage, name: &str) -> anyhow::Result<()> {
    let ran = stage.client.command(name, ["echo", "well"]).run();
    let ran = tokio::time::timeout(LONG, ran)
        .await
        .context("no answer")??;
    ensure!(ran.stdout.as_ref() == b"well\n", "{ran:?}");
    Ok(())
}

fn descriptors(stage: &Stage) -> anyhow::Result<usize> {
    let pid = stage.gateway.pid().context("no gateway")?;
    Ok(std::fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

fn refused(status: u16, reason: &str) -> Answer {
    Answer::Refused(status, reason.to_owned())
}

#[tokio::test]
async fn a_stolen_token_attaches_nobody() -> anyhow::Result<()> {
    let stage = Stage::open().await?;
    let tenant = stage.tenant("tenant", Image::Busybox, "runc").await?;
    let other = stage.tenant("other", Image::Busybox, "runc").await?;
    let stolen = Stolen::from(&stage, &tenant)?;
    let others = Stolen::from(&stage, &other)?;
    let secret = "5".repeat(64);
    let head = stolen.head(&secret);
    let with = |change: &dyn Fn(&mut Stolen)| {
        let mut changed = stolen.clone();
        change(&mut changed);
        changed.head(&secret)
    };

    // With the right user, and everything that can be stolen.
    for (what, head, answer) in [
        ("another secret", head.clone(), refused(409, "TOKEN_USED")),
        ("the same again", head.clone(), refused(409, "TOKEN_USED")),
        (
            "a wrong token",
            with(&|it| it.token = "0".repeat(64)),
            refused(401, "WRONG_TOKEN"),
        ),
        (
            "no hexadecimal token",
            with(&|it| it.token = "x".repeat(64)),
            refused(401, "WRONG_TOKEN"),
        ),
        (
            "an incarnation to come",
            with(&|it| it.incarnation += 1),
            refused(409, "REVOKED"),
        ),
        (
            "another sandbox's credentials",
            others.head(&secret),
            refused(403, "NO_SUCH_SANDBOX"),
        ),
        (
            "another sandbox's token",
            with(&|it| it.token.clone_from(&others.token)),
            refused(401, "WRONG_TOKEN"),
        ),
    ] {
        let answered = talk(stolen.dial(SUPERVISOR)?, head.as_bytes(), LONG);
        ensure!(answered == answer, "{what}: {answered:?}");
        is_served(&stage, "tenant").await.context(what)?;
    }
    // With the wrong one: the kernel says who it is.
    for user in [0, 1_000] {
        let error = stolen.dial(user).err().context("it may dial")?;
        ensure!(
            error.kind() == std::io::ErrorKind::PermissionDenied,
            "{error}"
        );
    }
    for user in [None, Some(others.base + SUPERVISOR)] {
        match dial(&stolen.folder, user) {
            Ok(stream) => {
                let answered = talk(stream, head.as_bytes(), LONG);
                ensure!(answered == Answer::Closed, "{user:?}: {answered:?}");
            }
            Err(error) => ensure!(user.is_some(), "root may dial: {error}"),
        }
    }
    stage.unharmed("a thief").await?;

    // Of an earlier incarnation, while it sleeps and after it has woken up.
    for depth in [Depth::Freeze, Depth::Stop] {
        let old = Stolen::from(&stage, &tenant)?;
        stage.client.suspend("tenant").depth(depth).wait().await?;
        if let Ok(stream) = old.dial(SUPERVISOR) {
            let answered = talk(stream, old.head(&secret).as_bytes(), LONG);
            ensure!(answered != Answer::LetIn, "asleep at {depth:?}");
        }
        stage.client.resume("tenant").wait().await?;
        let answered = talk(old.dial(SUPERVISOR)?, old.head(&secret).as_bytes(), LONG);
        ensure!(
            answered == refused(409, "REVOKED"),
            "{depth:?}: {answered:?}"
        );
        let new = Stolen::from(&stage, &tenant)?;
        ensure!(new.token != old.token && new.incarnation > old.incarnation);
        is_served(&stage, "tenant").await?;
    }
    stage.unharmed("a thief of old tokens").await?;
    stage.close().await
}

/// What is no head of an attach, with what must come of it.
fn heads(stolen: &Stolen) -> Vec<(&'static str, Vec<u8>, Answer)> {
    let good = stolen.head(&"5".repeat(64));
    let malformed = || refused(403, "MALFORMED");
    let before_end = |more: &str| good.replacen("\r\n\r\n", &format!("\r\n{more}\r\n\r\n"), 1);
    let many: String = (0..200).map(|n| format!("X-{n}: y\r\n")).collect();
    vec![
        ("nothing", Vec::new(), Answer::Closed),
        (
            "half a head",
            good.as_bytes()[..40].to_vec(),
            Answer::Closed,
        ),
        (
            "a head without its end",
            good.trim_end().into(),
            Answer::Closed,
        ),
        (
            "huge headers",
            before_end(&format!("X: {}", "y".repeat(1 << 20))).into(),
            malformed(),
        ),
        ("endless headers", vec![b'x'; 1 << 20], malformed()),
        (
            "many headers",
            before_end(many.trim_end()).into(),
            malformed(),
        ),
        (
            "two tokens",
            before_end("Authorization: Bearer 0").into(),
            malformed(),
        ),
        (
            "two sandboxes",
            before_end("Overwinter-Sandbox: 0").into(),
            malformed(),
        ),
        (
            "more after it",
            format!("{good}PRI * HTTP/2.0\r\n\r\n").into(),
            malformed(),
        ),
        (
            "another path",
            good.replacen("/attach", "/", 1).into(),
            malformed(),
        ),
        (
            "another method",
            good.replacen("POST", "GET", 1).into(),
            malformed(),
        ),
        (
            "HTTP/2 at once",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(),
            malformed(),
        ),
        (
            "no text",
            [&[0, 255, 13, 10, 13, 10, 13, 10][..], &[7; 900]].concat(),
            malformed(),
        ),
        ("a secret too short", stolen.head("55").into(), malformed()),
        (
            "no number",
            good.replacen("Incarnation: ", "Incarnation: -", 1).into(),
            malformed(),
        ),
    ]
}

#[tokio::test]
async fn who_stalls_or_talks_nonsense_is_let_go() -> anyhow::Result<()> {
    let stage = Stage::open().await?;
    let tenant = stage.tenant("tenant", Image::Busybox, "runc").await?;
    let stolen = Stolen::from(&stage, &tenant)?;
    let cases = heads(&stolen);
    // A few at a time: each sandbox has so many connections.
    let mut wrong = Vec::new();
    for some in cases.chunks(5) {
        let talking = some.iter().map(|(what, said, answer)| {
            let (stream, said) = (stolen.dial(SUPERVISOR), said.clone());
            async move {
                let talked =
                    tokio::task::spawn_blocking(move || anyhow::Ok(talk(stream?, &said, LONG)));
                anyhow::Ok((*what, talked.await??, answer))
            }
        });
        for talked in futures::future::join_all(talking).await {
            let (what, answered, answer) = talked?;
            // Who was still talking may find it closed before it has read.
            if answered != *answer && answered != Answer::Closed {
                wrong.push(format!("{what}: {answered:?}, not {answer:?}"));
            }
        }
        stage.unharmed("nonsense").await?;
    }
    ensure!(wrong.is_empty(), "{wrong:#?}");
    is_served(&stage, "tenant").await?;

    // As many as it likes, which say nothing: they cost the gateway a few.
    let before = descriptors(&stage)?;
    let held: Vec<_> = (0..1_000).map(|_| stolen.dial(SUPERVISOR)).collect();
    stage.unharmed("a flood of connections").await?;
    let during = descriptors(&stage)?;
    ensure!(
        during < before + CONNECTIONS,
        "{before} descriptors, then {during}"
    );
    // It was attached before, and is.
    is_served(&stage, "tenant").await?;
    drop(held);
    // When they are gone it can attach anew.
    stage
        .client
        .suspend("tenant")
        .depth(Depth::Stop)
        .wait()
        .await?;
    stage.client.resume("tenant").wait().await?;
    is_served(&stage, "tenant").await?;
    stage.close().await
}

const FROM_INSIDE: &[(&str, &[&str])] = &[
    // Root inside may read every file; what is in this one was used up by PID 1.
    ("read by root", &["ok"]),
    ("read by user", &["EACCES"]),
    ("list by user", &["EACCES"]),
    ("second by root", &["closed"]),
    ("second by user", &["EACCES"]),
    ("second by supervisor", &["409"]),
    ("second twice", &["409"]),
    ("write", &["EROFS"]),
    ("flood", &["2000"]),
    ("storm", &["ok"]),
];

/// On gVisor the gateway cannot tell PID 1's user from root, who comes no further.
const FROM_INSIDE_GVISOR: &[(&str, &[&str])] = &[
    ("read by root", &["ok", "EACCES"]),
    ("read by user", &["EACCES"]),
    ("list by user", &["EACCES"]),
    ("second by root", &["409", "401", "closed"]),
    ("second by user", &["EACCES", "ECONNREFUSED"]),
    ("second by supervisor", &["409", "401", "closed"]),
    ("second twice", &["409", "401", "closed"]),
    ("write", &["EROFS"]),
    ("flood", &["2000"]),
    ("storm", &["ok"]),
];

#[tokio::test]
async fn a_program_inside_cannot_be_its_supervisor() -> anyhow::Result<()> {
    if !has_python()? {
        return Ok(());
    }
    let mut runtimes = vec![("runc", FROM_INSIDE)];
    if has_gvisor()? {
        runtimes.push(("runsc", FROM_INSIDE_GVISOR));
    }
    let stage = Stage::open().await?;
    for (runtime, allowed) in runtimes {
        let tenant: Sandbox = stage.tenant(runtime, Image::Host, runtime).await?;
        let knows = json!({
            "supervisor": SUPERVISOR,
            "sandbox": tenant.id(),
            "incarnation": tenant.raw().incarnation_issued,
        });
        let before = descriptors(&stage)?;
        let attack = attack::run(&stage, runtime, "root", PROGRAM, &knows);
        tokio::pin!(attack);
        let (mut most, mut looks) = (before, 0);
        let outcomes = loop {
            tokio::select! {
                outcomes = &mut attack => break outcomes?,
                // Nothing tells how many descriptors another process has.
                () = tokio::time::sleep(Duration::from_millis(50)) => {
                    most = most.max(descriptors(&stage)?);
                    looks += 1;
                    if looks % 20 == 0 {
                        stage.unharmed(runtime).await?;
                    }
                }
            }
        };
        check(runtime, &outcomes, allowed)?;
        ensure!(
            most < before + CONNECTIONS,
            "{before} descriptors, then {most}"
        );
        is_served(&stage, runtime).await?;
        let now = stage.client.get(runtime).await?;
        if now.phase() != Phase::Ready {
            bail!("{runtime}: {now:?}");
        }
        stage.unharmed(runtime).await?;
    }
    // All of it is in the log, in a few lines: for each sandbox one for the first, the 10th and so on.
    let log = std::fs::read_to_string(stage.gateway.log_path())?;
    for words in ["attach refused", "not the supervisor's user"] {
        let lines = log.lines().filter(|line| line.contains(words)).count();
        ensure!((1..=8).contains(&lines), "{lines} lines say {words:?}");
    }
    stage.close().await
}
