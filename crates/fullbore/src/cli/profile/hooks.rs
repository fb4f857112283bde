//! The `[hooks]` of a profile: commands, and the time that each may take.

use super::file::unknown;
use crate::cli::values::time;
use fullbore_format::error::{Error, ErrorKind, Result};
use std::time::Duration;
use toml::{Table, Value};

/// A command that a profile names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct HookCommand {
    /// Its name in the profile, such as `before`.
    pub(in crate::cli) name: &'static str,
    /// The program and its arguments.
    pub(in crate::cli) words: Vec<String>,
    /// The time after which it is ended.
    pub(in crate::cli) timeout: Duration,
}

/// The commands of a profile.
#[derive(Debug, Default)]
pub(in crate::cli) struct HookCommands(pub(in crate::cli) Vec<HookCommand>);

/// The names of hooks, in the order in which they run.
const NAMES: [&str; 5] = ["before", "on_success", "on_warning", "on_failure", "after"];
const TIMEOUT: &str = "timeout";
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);

impl HookCommands {
    /// Reads the table.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for an unknown name, and for a value that is no command.
    pub(super) fn parse(table: &Table) -> Result<Self> {
        let known = || NAMES.into_iter().chain([TIMEOUT]);
        if let Some(name) = table
            .keys()
            .find(|name| known().all(|known| known != *name))
        {
            return Err(unknown(format!("there is no hook {name:?}"), name, known()));
        }
        let timeout = match table.get(TIMEOUT) {
            None => DEFAULT_TIMEOUT,
            Some(Value::String(text)) => time(text).map_err(|why| refused(TIMEOUT, why))?,
            Some(_) => return Err(refused(TIMEOUT, "use a number and s, m or h, as \"30m\"")),
        };
        let given = NAMES
            .into_iter()
            .filter_map(|name| Some((name, table.get(name)?)));
        let commands = given.map(|(name, value)| {
            let words = words(name, value)?;
            Ok(HookCommand {
                name,
                words,
                timeout,
            })
        });
        commands.collect::<Result<_>>().map(Self)
    }

    /// The command of this name.
    pub(in crate::cli) fn named(&self, name: &str) -> Option<&HookCommand> {
        self.0.iter().find(|hook| hook.name == name)
    }
}

/// The words of a command: a text is for the shell, a list is a program and its arguments.
fn words(name: &str, value: &Value) -> Result<Vec<String>> {
    let why = "it is a text for the shell, or a list: a program and its arguments";
    let words: Option<Vec<_>> = match value {
        Value::String(text) => Some(["/bin/sh", "-c", text].map(str::to_owned).into()),
        Value::Array(words) => words
            .iter()
            .map(|word| word.as_str().map(str::to_owned))
            .collect(),
        _ => None,
    };
    words
        .filter(|words| !words.is_empty())
        .ok_or_else(|| refused(name, why))
}

fn refused(name: &str, why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Usage, format!("cannot use the hook {name:?}")).because(why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<HookCommands> {
        HookCommands::parse(&text.parse().unwrap())
    }

    #[test]
    fn a_text_is_for_the_shell_and_a_list_is_a_command() {
        let hooks = parse("before = 'a | b'\nafter = ['umount', '/mnt']\ntimeout = '5s'").unwrap();
        let before = hooks.named("before").unwrap();
        assert_eq!(before.words, ["/bin/sh", "-c", "a | b"]);
        assert_eq!(before.timeout, Duration::from_secs(5));
        assert_eq!(hooks.named("after").unwrap().words, ["umount", "/mnt"]);
        assert!(hooks.named("on_failure").is_none());
        for bad in [
            "before = 3",
            "before = []",
            "after = [1]",
            "timeout = 5",
            "timeout = 'x'",
        ] {
            assert_eq!(parse(bad).unwrap_err().kind, ErrorKind::Usage, "{bad}");
        }
    }
}
