//! `overwinter`: see the library of this crate.

fn main() -> std::process::ExitCode {
    overwinter_cli::main()
}
