//! The text of a profile: its keys are the long options of the commands.

use super::{
    hooks::HookCommands,
    places::{are_sources_here, is_place, place_of},
};
use clap::{Arg, Command};
use fullbore_format::error::{Error, ErrorKind, Result, quoted};
use std::{
    any::TypeId,
    collections::BTreeMap,
    ffi::OsString,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};
use toml::{Table, Value, de::DeTable};

/// The defaults of commands, as a file gives them.
#[derive(Debug, Default)]
pub(in crate::cli) struct Profile {
    /// The repository of every command.
    pub(in crate::cli) repository: Option<String>,
    /// Further repositories that get each backup.
    pub(in crate::cli) also: Vec<String>,
    /// The PATHs of `fullbore backup`.
    pub(in crate::cli) sources: Vec<String>,
    /// The commands that `fullbore run` runs, if the file says it.
    pub(in crate::cli) steps: Option<Vec<String>>,
    /// The commands that `fullbore run` runs before and after.
    pub(in crate::cli) hooks: HookCommands,
    /// Options of every command that has them.
    pub(super) common: Vec<ProfileOption>,
    /// Options of one command.
    pub(super) of_command: BTreeMap<String, Vec<ProfileOption>>,
}

/// An option, without its dashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProfileOption {
    pub(super) name: String,
    pub(super) value: OptionValue,
}

/// The value of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OptionValue {
    /// `true` or `false`, of an option without a value.
    Switch(bool),
    /// A value, or several of an option that can be repeated.
    Texts(Vec<String>),
}

/// Keys that are no options.
const OWN_KEYS: [&str; 5] = ["repository", "repositories", "sources", "steps", "hooks"];

/// The steps of `fullbore run`, in their order.
pub(in crate::cli) const STEPS: [&str; 4] = ["backup", "forget", "prune", "verify"];

/// Options that no profile may have.
const REFUSED: [&str; 4] = ["profile", "config", "help", "version"];

/// Names that people look for, and what a profile has instead.
const OTHER_NAMES: [(&str, &str); 5] = [
    (
        "to",
        "`repository` names the repository of all commands, and `repositories` several; a sync is `fullbore sync REPO DEST`",
    ),
    ("endpoint", "write `storage = [\"endpoint=https://…\"]`"),
    ("region", "write `storage = [\"region=…\"]`"),
    (
        "access-key",
        "keys of a store are in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or in ~/.aws/credentials, not in a profile",
    ),
    (
        "secret-key",
        "keys of a store are in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or in ~/.aws/credentials, not in a profile",
    ),
];

impl Profile {
    /// Reads the text of `file`. `program` must be built.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for text that is not TOML, for a key that is no option and for a value that its option cannot have.
    pub(super) fn parse(text: &str, file: &Path, program: &Command) -> Result<Self> {
        let table: Table =
            toml::from_str(text).map_err(|error| syntax_error(text, file, &error))?;
        let mut profile = Self::default();
        if table.contains_key("repository") && table.contains_key("repositories") {
            let message = "cannot use \"repository\" and \"repositories\"";
            return Err(in_file(Error::new(ErrorKind::Usage, message), file, None));
        }
        let mut errors = Vec::new();
        for (key, value) in &table {
            if let Err(refused) = profile.take(key, value, program) {
                let place = place_of_key(text, key, refused.within.as_deref());
                errors.push((place, in_file(refused.error, file, place)));
            }
        }
        if let Some(error) = all_in_one(errors) {
            return Err(error);
        }
        if are_sources_here(&profile) {
            for source in &mut profile.sources {
                *source = place_of("sources", source)
                    .map_err(|error| in_file(error, file, place_of_key(text, "sources", None)))?;
            }
        }
        Ok(profile)
    }

    /// The commands that have a table.
    pub(in crate::cli) fn commands(&self) -> impl Iterator<Item = &str> {
        self.of_command.keys().map(String::as_str)
    }

    /// Does the profile say which backups to keep?
    pub(super) fn has_rules(&self) -> bool {
        let of_forget = self.of_command.get("forget").into_iter().flatten();
        let mut options = of_forget.chain(&self.common);
        options.any(|option| option.name.starts_with("keep-"))
    }

    /// Takes the repositories of the profile: the first is that of every command.
    fn take_repositories(&mut self, all: Vec<String>) -> Result<()> {
        let mut all = all.into_iter();
        self.repository = all.next();
        self.also = all.collect();
        if self.repository.is_some() {
            return Ok(());
        }
        let message = "cannot use [] for \"repositories\"";
        Err(Error::new(ErrorKind::Usage, message).because("it names at least one"))
    }

    fn take(&mut self, key: &str, value: &Value, program: &Command) -> Result<(), RefusedKey> {
        match (key, value) {
            ("repository", Value::Array(_)) => {
                let message = format!("cannot use {value} for {key:?}");
                let error = Error::new(ErrorKind::Usage, message).because("it is one repository");
                return Err(error
                    .hint("for several, write `repositories = [\"…\", \"…\"]`")
                    .into());
            }
            ("repository", value) => {
                self.repository = Some(place_of(key, &text_of(key, value)?)?);
            }
            ("repositories", value) => {
                let all = texts_of(key, value)?;
                let all = all.iter().map(|text| place_of(key, text));
                self.take_repositories(all.collect::<Result<_>>()?)?;
            }
            ("sources", value) => self.sources = texts_of(key, value)?,
            ("steps", value) => self.steps = Some(steps_of(value)?),
            ("hooks", Value::Table(table)) => self.hooks = HookCommands::parse(table)?,
            // Any other table is named after a command.
            (_, Value::Table(table)) => {
                let command = command_named(program, key)?;
                let option = |(name, value): (&String, &Value)| {
                    option_of(&[command], name, value, key).map_err(|error| RefusedKey {
                        error,
                        within: Some(name.clone()),
                    })
                };
                let options = table.iter().map(option).collect::<Result<_, _>>()?;
                self.of_command.insert(key.to_owned(), options);
            }
            ("to", _) => {
                let message = "cannot use \"to\" for every command";
                let error = Error::new(ErrorKind::Usage, message)
                    .hint("name the repository with `repository = \"…\"`");
                return Err(error.into());
            }
            _ => {
                let commands: Vec<_> = program.get_subcommands().collect();
                self.common.push(option_of(&commands, key, value, "")?);
            }
        }
        Ok(())
    }
}

/// The error of a key, and the key in its table if it is not the table itself.
struct RefusedKey {
    error: Error,
    within: Option<String>,
}

impl From<Error> for RefusedKey {
    fn from(error: Error) -> Self {
        Self {
            error,
            within: None,
        }
    }
}

fn in_file(mut error: Error, file: &Path, place: Option<(usize, usize)>) -> Error {
    let file = quoted(file.as_os_str().as_bytes());
    let place = place.map_or_else(String::new, |(line, column)| {
        format!(" line {line}, column {column}:")
    });
    error.what = format!("{file}:{place} {}", error.what);
    error
}

/// Returns the first error of a file, with the others below it.
fn all_in_one(mut errors: Vec<(Option<(usize, usize)>, Error)>) -> Option<Error> {
    errors.sort_by_key(|(place, _)| *place);
    let mut errors = errors.into_iter().map(|(_, error)| error);
    let first = errors.next()?;
    Some(errors.fold(first, |first, error| {
        let hint = error.hint.as_ref();
        let hint = hint.map_or_else(String::new, |hint| format!(" ({hint})"));
        first.detail(format!("{}{hint}", error.line()))
    }))
}

/// The line and the column of the value of a key, or of a key in the table with that name; both count from 1.
fn place_of_key(text: &str, key: &str, within: Option<&str>) -> Option<(usize, usize)> {
    let table = DeTable::parse(text).ok()?;
    let value = table.get_ref().get(key)?;
    let inner = within.and_then(|name| value.get_ref().as_table()?.get(name));
    let position = inner.unwrap_or(value).span().start;
    let before = &text[..position];
    let line_start = before.rfind('\n').map_or(0, |end| end + 1);
    let line = before.matches('\n').count() + 1;
    Some((line, before[line_start..].chars().count() + 1))
}

fn syntax_error(text: &str, file: &Path, error: &toml::de::Error) -> Error {
    let position = error.span().map_or(0, |span| span.start);
    let line = text[..position.min(text.len())].matches('\n').count() + 1;
    let file = quoted(file.as_os_str().as_bytes());
    let message = format!("{file}: line {line} is not TOML");
    Error::new(ErrorKind::Usage, message).because(error.message())
}

fn command_named<'a>(program: &'a Command, name: &str) -> Result<&'a Command> {
    let mut commands = program.get_subcommands();
    commands
        .find(|command| command.get_name() == name)
        .ok_or_else(|| {
            let names = program.get_subcommands().map(Command::get_name);
            let message = format!("there is no command {name:?}, which [{name}] is for");
            if ["retention", "keep"].contains(&name) {
                let hint = "the rules of what to keep stand in [forget], as keep-daily = 7";
                return Error::new(ErrorKind::Usage, message).hint(hint);
            }
            unknown(message, name, names.chain(["hooks"]))
        })
}

/// Finds the option in the first command that has it.
fn option_of(
    commands: &[&Command],
    name: &str,
    value: &Value,
    table: &str,
) -> Result<ProfileOption> {
    let arguments = || commands.iter().flat_map(|command| command.get_arguments());
    let is_named = |arg: &&Arg| arg.get_long() == Some(name) && !REFUSED.contains(&name);
    let Some(arg) = arguments().find(is_named) else {
        let names = arguments()
            .filter_map(Arg::get_long)
            .filter(|name| !REFUSED.contains(name));
        let own = OWN_KEYS.into_iter().filter(|_| table.is_empty());
        let message = match table {
            "" => format!("there is no option {name:?}"),
            command => format!("`fullbore {command}` has no option {name:?}"),
        };
        if let Some((_, hint)) = OTHER_NAMES.iter().find(|(other, _)| *other == name) {
            return Err(Error::new(ErrorKind::Usage, message).hint(*hint));
        }
        return Err(unknown(message, name, names.chain(own)));
    };
    let value = option_value(arg, name, value)?;
    let name = name.to_owned();
    Ok(ProfileOption { name, value })
}

fn option_value(arg: &Arg, name: &str, value: &Value) -> Result<OptionValue> {
    let refused = |why: &str| {
        if name.starts_with("pass") {
            // What was meant as a secret does not go to a journal.
            let message = format!("cannot use this value for {name:?}");
            return Err(Error::new(ErrorKind::Usage, message)
                .because(why)
                .hint("a profile has no secrets: passphrase-file names a file with one"));
        }
        let message = format!("cannot use {value} for {name:?}");
        Err(Error::new(ErrorKind::Usage, message).because(why))
    };
    match (arg.get_action(), value) {
        (action, Value::Boolean(on)) if !action.takes_values() => Ok(OptionValue::Switch(*on)),
        (action, _) if !action.takes_values() => refused("it is true or false"),
        (_, Value::Boolean(_)) => refused("it has a value"),
        (clap::ArgAction::Append, value) => {
            let texts = texts_of(name, value)?;
            placed(arg, name, texts).map(OptionValue::Texts)
        }
        (_, Value::Array(_)) => refused("it has one value"),
        (_, Value::Integer(number)) if !is_text(arg) => {
            Ok(OptionValue::Texts(vec![number.to_string()]))
        }
        (_, value) => placed(arg, name, vec![text_of(name, value)?]).map(OptionValue::Texts),
    }
}

/// Returns the values as the command gets them: files and directories of this host from / on.
fn placed(arg: &Arg, name: &str, texts: Vec<String>) -> Result<Vec<String>> {
    match is_place(arg) {
        true => texts.iter().map(|text| place_of(name, text)).collect(),
        false => Ok(texts),
    }
}

/// Is the value of the option a text, such as a name or a path? A number in its place is a mistake.
fn is_text(arg: &Arg) -> bool {
    let value_type = arg.get_value_parser().type_id();
    [
        TypeId::of::<String>(),
        TypeId::of::<OsString>(),
        TypeId::of::<PathBuf>(),
    ]
    .into_iter()
    .any(|text| value_type == text)
}

fn text_of(key: &str, value: &Value) -> Result<String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        _ => {
            let message = format!("cannot use {value} for {key:?}");
            Err(Error::new(ErrorKind::Usage, message).because("it is a text in quotes"))
        }
    }
}

fn texts_of(key: &str, value: &Value) -> Result<Vec<String>> {
    match value {
        Value::Array(values) => values.iter().map(|value| text_of(key, value)).collect(),
        value => Ok(vec![text_of(key, value)?]),
    }
}

fn steps_of(value: &Value) -> Result<Vec<String>> {
    let steps = texts_of("steps", value)?;
    match steps.iter().find(|step| !STEPS.contains(&&step[..])) {
        None => Ok(steps),
        Some(step) => Err(unknown(
            format!("there is no step {step:?}"),
            step,
            STEPS.into_iter(),
        )),
    }
}

/// An error with the name that is most alike, if one is.
pub(super) fn unknown<'a>(what: String, word: &str, names: impl Iterator<Item = &'a str>) -> Error {
    let likeness = |name: &str| (strsim::jaro(name, word) * 1000.0) as u32;
    let nearest = names.max_by_key(|name| likeness(name));
    let error = Error::new(ErrorKind::Usage, what);
    match nearest.filter(|name| likeness(name) > 750) {
        Some(name) => error.hint(format!("did you mean {name:?}?")),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Cli;
    use clap::CommandFactory;

    fn parse(text: &str) -> Result<Profile> {
        let mut program = Cli::command();
        program.build();
        Profile::parse(text, Path::new("/etc/fullbore/web.toml"), &program)
    }

    #[test]
    fn keys_are_options_and_tables_are_commands() {
        let profile = parse(
            "repository = '/backup'\nsources = '/srv'\nkey = '/k'\n[backup]\nexclude = ['*.tmp', '*.o']\nfull = true\n\
             workers = 2\n[verify]\nfor = '30m'\n",
        )
        .unwrap();
        assert_eq!(profile.repository.as_deref(), Some("/backup"));
        assert_eq!(profile.sources, ["/srv"]);
        assert_eq!(profile.common[0].name, "key");
        let texts = |values: &[&str]| {
            OptionValue::Texts(values.iter().map(|value| (*value).to_owned()).collect())
        };
        let values: Vec<_> = profile.of_command["backup"]
            .iter()
            .map(|option| option.value.clone())
            .collect();
        let expected = [
            texts(&["*.tmp", "*.o"]),
            OptionValue::Switch(true),
            texts(&["2"]),
        ];
        assert_eq!(values, expected);
    }

    #[test]
    fn a_key_that_is_no_option_is_an_error_with_the_nearest_name() {
        for (text, word, hint) in [
            (
                "repositry = 'x'",
                "no option \"repositry\"",
                "\"repository\"",
            ),
            (
                "[backup]\nexclud = 'x'",
                "no option \"exclud\"",
                "\"exclude\"",
            ),
            (
                "[forget]\nkeep_daily = 7",
                "`fullbore forget`",
                "\"keep-daily\"",
            ),
            (
                "[backups]\nfull = true",
                "no command \"backups\"",
                "\"backup\"",
            ),
            ("steps = ['backups']", "no step", "\"backup\""),
            ("[hooks]\nbefor = 'x'", "no hook", "\"before\""),
            ("[backup]\nfull = 3", "cannot use 3 for \"full\"", ""),
            ("[backup]\nhost = ['a', 'b']", "for \"host\"", ""),
            ("[backup]\nprofile = 'x'", "no option \"profile\"", ""),
            ("to = '/x'", "\"to\" for every command", "repository = "),
            ("a = 'b'\nfull = tru", "line 2 is not TOML", ""),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.what.contains(word), "{text}: {}", error.what);
            assert!(
                error.what.starts_with("\"/etc/fullbore/web.toml\""),
                "{text}"
            );
            let said = error.hint.unwrap_or_default();
            assert!(
                said.contains(hint) && (hint.is_empty() == said.is_empty()),
                "{text}: {said}"
            );
        }
    }

    #[test]
    fn a_value_of_a_wrong_type_is_an_error_with_its_line_and_column() {
        for (text, place, word) in [
            (
                "repository = 3",
                "line 1, column 14",
                "3 for \"repository\"",
            ),
            (
                "\nsources = ['/a', 3]",
                "line 2, column 11",
                "3 for \"sources\"",
            ),
            ("[backup]\nhost = 3", "line 2, column 8", "3 for \"host\""),
            (
                "[backup]\nexclude = 3",
                "line 2, column 11",
                "3 for \"exclude\"",
            ),
            ("key = 1.5", "line 1, column 7", "1.5 for \"key\""),
            (
                "# ä\n[backup]\nfull = 'x'",
                "line 3, column 8",
                "for \"full\"",
            ),
            ("[backup]\nexclud = 'x'", "line 2, column 10", "\"exclud\""),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.what.contains(place), "{text}: {}", error.what);
            assert!(error.what.contains(word), "{text}: {}", error.what);
        }
        parse("[backup]\nworkers = 2\n[forget]\nkeep-last = 3").unwrap();
    }
}
