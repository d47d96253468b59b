//! The program inside every sandbox. See the library for what it does.

use std::process::ExitCode;

use overwinter_supervisor::Config;

fn main() -> ExitCode {
    let config = match Config::parse(std::env::args_os().skip(1)) {
        Ok(config) => config,
        Err(error) => {
            eprintln!("overwinter-supervisor: {error}");
            eprintln!(
                "usage: overwinter-supervisor [--run-dir DIR] [--workspace DIR] [--user ID] [--no-pid1] [--inherit-env] [--main-user USER] [--main-workdir DIR]"
            );
            return ExitCode::from(2);
        }
    };
    match overwinter_supervisor::run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("overwinter-supervisor: {error}");
            ExitCode::FAILURE
        }
    }
}
