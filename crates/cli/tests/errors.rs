//! That whatever goes wrong is told with its code and a next step.

#![allow(clippy::unwrap_used)]

mod common;

use std::process::Output;

use common::overwinter;
use common::support::Fake;

/// The first line, which has the code, and the last, which says what to do.
fn told(output: &Output) -> (String, String) {
    let said = std::str::from_utf8(&output.stderr).unwrap();
    let next = said.lines().last().unwrap_or_default();
    assert!(next.starts_with("  next: ") && next.len() > 10, "{said}");
    (said.lines().next().unwrap().to_owned(), next.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arguments_that_are_not_understood_are_told_with_the_commands_help() {
    let served = Fake::serve().await;
    for (arguments, code, words, help) in [
        (
            &["sb", "suspend", "--depht", "stop"][..],
            2,
            "'--depht'",
            "overwinter sandbox suspend --help",
        ),
        (
            &["--socket", "sandbox", "op", "wait"],
            2,
            "required arguments",
            "overwinter operation wait --help",
        ),
        (
            &["doctor", "-o", "yaml"],
            2,
            "'yaml'",
            "overwinter doctor --help",
        ),
        (
            &["sandbox"],
            2,
            "a command is missing",
            "overwinter sandbox --help",
        ),
        (
            &["sandbox", "create", "a\u{1b}b", "more"],
            2,
            "'more'",
            "overwinter sandbox create --help",
        ),
        // What exec itself fails with is told apart from the command's codes.
        (
            &["sb", "exec", "box", "--nonesuch", "--", "true"],
            125,
            "'--nonesuch'",
            "overwinter sandbox exec --help",
        ),
    ] {
        let output = overwinter(&served, arguments).output().await.unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        let (error, next) = told(&output);
        assert!(
            error.starts_with("error[USAGE]: ") && error.contains(words),
            "{error}"
        );
        assert_eq!(next, format!("  next: {help}"));
        assert!(!output.stderr.contains(&0x1b));
    }
    for asked in ["--help", "--version"] {
        let output = overwinter(&served, &["sandbox", asked])
            .output()
            .await
            .unwrap();
        assert!(output.status.success() && output.stderr.is_empty());
        assert!(!output.stdout.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_our_own_that_fails_says_what_to_do_about_it() {
    let served = Fake::serve().await;
    served.fake.add("box");
    served
        .fake
        .state()
        .files
        .insert("/workspace/in".into(), b"contents".to_vec());
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("file"), "").unwrap();
    let (inside, below, none) = ("box:/workspace/in", path("file/below"), path("none"));
    let below_none = path("none/below");
    for (from, to, words) in [
        (none.as_str(), inside, "nothing is there"),
        (&below, inside, "no folder"),
        (inside, &below_none, "nothing is there"),
        (inside, "/dev/full", "make room"),
    ] {
        let output = overwinter(&served, &["sandbox", "cp", from, to]);
        let output = { output }.output().await.unwrap();
        assert_eq!(output.status.code(), Some(1), "{from} {to}");
        let (error, next) = told(&output);
        assert!(error.starts_with("error[LOCAL_IO]: "), "{error}");
        assert!(next.contains(words), "{from} {to}: {next}");
    }
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let list = overwinter(&served, &["sandbox", "list"])
        .stdout(full)
        .spawn();
    let output = list.unwrap().wait_with_output().await.unwrap();
    let (error, next) = told(&output);
    assert!(error.starts_with("error[LOCAL_IO]: "), "{error}");
    assert!(next.contains("make room"), "{next}");
}

/// An answer without advice, as one from inside a sandbox is, gets what goes with its code.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_without_a_next_step_gets_one() {
    let served = Fake::serve().await;
    served.fake.add("box");
    let copy = ["sandbox", "cp", "box:/nonesuch", "-"];
    let output = overwinter(&served, &copy).output().await.unwrap();
    let (error, _) = told(&output);
    assert!(error.starts_with("error[FILE_NOT_FOUND]: "), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_that_cannot_be_named_is_not_one_that_nobody_answers_on() {
    let served = Fake::serve().await;
    let status = ["gateway", "status"];
    let named = |bytes: usize| {
        let mut command = overwinter(&served, &status);
        command.env("OVERWINTER_SOCKET", format!("/{}", "s".repeat(bytes - 1)));
        command
    };
    let longest = named(107).output().await.unwrap();
    assert!(told(&longest).0.starts_with("error[GATEWAY_UNREACHABLE]: "));
    let longer = named(108).output().await.unwrap();
    let (error, next) = told(&longer);
    assert!(
        error.starts_with("error[SOCKET_PATH_TOO_LONG]: ") && error.contains("108 bytes"),
        "{error}"
    );
    assert!(next.contains("shorter"), "{next}");

    // As a variable that is not set: an empty one is what a script makes of that.
    let mut empty = overwinter(&served, &status);
    empty.env("OVERWINTER_SOCKET", "");
    let mut unset = overwinter(&served, &status);
    unset.env_remove("OVERWINTER_SOCKET");
    let (empty, unset) = (empty.output().await.unwrap(), unset.output().await.unwrap());
    assert_eq!(empty, unset);
    let mut flag = overwinter(&served, &["--socket", served.socket.to_str().unwrap()]);
    flag.args(status).env("OVERWINTER_SOCKET", "");
    let flag = flag.output().await.unwrap();
    assert!(flag.status.success(), "{flag:?}");
}
