//! `ow`: `overwinter` by its short name.

fn main() -> std::process::ExitCode {
    overwinter_cli::main()
}
