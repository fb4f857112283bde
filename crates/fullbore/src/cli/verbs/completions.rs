//! `fullbore completions`.

use crate::cli::output::printed;
use fullbore_format::{error::Result, text};

pub(in crate::cli) fn run(mut program: clap::Command, shell: clap_complete::Shell) -> Result<u8> {
    let mut script = Vec::new(); // the generator panics on an error of its writer
    clap_complete::generate(shell, &mut program, "fullbore", &mut script);
    printed(|out| text::line(out, String::from_utf8_lossy(&script).trim_end()).map(|()| 0))
}
