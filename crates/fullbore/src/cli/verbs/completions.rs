//! `fullbore completions`.

use crate::cli::{output::printed, profile};
use clap_complete::Shell;
use fullbore_format::{error::Result, text};

/// The function of the script that prints the names of profiles.
const PROFILES: &str = "_fullbore_profiles";

/// Commands whose first word is a profile, as the script calls them.
const OF_PROFILES: [&str; 3] = [
    "fullbore__subcmd__run",
    "fullbore__subcmd__systemd",
    "fullbore__subcmd__config__subcmd__check",
];

pub(in crate::cli) fn run(mut program: clap::Command, shell: Shell) -> Result<u8> {
    let mut script = Vec::new(); // the generator panics on an error of its writer
    clap_complete::generate(shell, &mut program, "fullbore", &mut script);
    let script = String::from_utf8_lossy(&script);
    let script = match shell {
        Shell::Bash => with_profiles(&script),
        _ => script.into_owned(),
    };
    printed(|out| text::line(out, script.trim_end()).map(|()| 0))
}

/// Returns a script of bash that also offers the names of profiles, where clap offers files and nothing.
fn with_profiles(script: &str) -> String {
    let system = profile::SYSTEM;
    let mut whole = format!(
        "{PROFILES}() {{\n    local file\n    for file in \"${{XDG_CONFIG_HOME:-$HOME/.config}}\"/fullbore/*.toml {system}/*.toml; do\n        \
         file=\"${{file##*/}}\"\n        [[ \"$file\" == \"*.toml\" ]] || printf '%s\\n' \"${{file%.toml}}\"\n    done\n}}\n\n"
    );
    let mut is_of_profile = false;
    let mut is_value = false;
    for line in script.lines() {
        let trimmed = line.trim();
        // The begin of a case.
        if let Some(name) = trimmed.strip_suffix(')').filter(|name| !name.contains('(')) {
            is_of_profile |= OF_PROFILES.contains(&name);
            is_value = matches!(name, "--profile" | "-P");
        }
        let line = match trimmed {
            _ if is_value && trimmed.starts_with("COMPREPLY=") => {
                is_value = false;
                format!("COMPREPLY=($(compgen -W \"$({PROFILES})\" -- \"${{cur}}\"))")
            }
            _ if is_of_profile && trimmed.starts_with("opts=\"") => {
                is_of_profile = false;
                trimmed.replacen("opts=\"", &format!("opts=\"$({PROFILES}) "), 1)
            }
            _ => line.to_owned(),
        };
        whole += &line;
        whole.push('\n');
    }
    whole
}
