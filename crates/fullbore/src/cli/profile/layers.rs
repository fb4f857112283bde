//! The arguments that a profile and the environment add to a command line.
//!
//! The command line wins over the environment, the environment over the profile, and in a profile the table of the command over the
//! keys above all tables. An option of a lower layer is left out if a higher one has it, or has one that it conflicts with.
//! An option that can be repeated is added to those of the other layers.

use super::{
    super::{command_line::TypedLine, command_words::inner_command},
    file::{OptionValue, Profile, ProfileOption},
};
use clap::{Arg, ArgAction, Command};
use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
};

/// What the name of a variable begins with; the rest is a long option, in capitals and with `_` for `-`.
const VARIABLES: &str = "FULLBORE_";
/// Stands for the repository of any command.
pub(super) const REPOSITORY_VARIABLE: &str = "FULLBORE_REPOSITORY";

/// Looks up a variable of the environment.
pub(super) type Variables<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// An option of a layer, ready to be added.
struct LayerOption<'a> {
    arg: &'a Arg,
    words: Vec<OsString>,
}

/// The defaults of all commands.
pub(super) struct DefaultLayers<'a> {
    /// As clap knows it, built.
    pub(super) program: &'a Command,
    pub(super) profile: &'a Profile,
    pub(super) variables: Variables<'a>,
}

impl DefaultLayers<'_> {
    /// Returns the words of `line` with the defaults that it does not override, behind the name of the command.
    pub(super) fn added_to(&self, line: TypedLine) -> Vec<OsString> {
        let also = self.further_destinations(&line);
        let mut line = self.with_repository(line);
        let begin = line.begin;
        line.words.splice(begin..begin, also);
        let Some(command) = inner_command(self.program, &line.command) else {
            return line.words;
        };
        self.with_options(line, command)
    }

    /// The further destinations of a backup, if those of the profile are meant.
    fn further_destinations(&self, line: &TypedLine) -> Vec<OsString> {
        let variable = (self.variables)(REPOSITORY_VARIABLE).filter(|word| !word.is_empty());
        let names_another = line.given.contains("to") || line.repository.is_some();
        if line.command != ["backup"] || names_another || variable.is_some() {
            return Vec::new();
        }
        let also = self.profile.also.iter();
        also.map(|name| option_word("to", OsStr::new(name)))
            .collect()
    }

    fn with_repository(&self, line: TypedLine) -> TypedLine {
        let variable = (self.variables)(REPOSITORY_VARIABLE).filter(|word| !word.is_empty());
        let of_profile = || self.profile.repository.as_ref().map(OsString::from);
        let typed = line.repository.clone();
        let is_typed = typed.is_some();
        let Some(repository) = typed.or(variable).or_else(of_profile) else {
            return line;
        };
        // A profile that the command line names means its repository, but `--to` says another one.
        let is_named = line.profile.is_some() || line.config.is_some();
        let is_meant = is_typed || is_named && line.command != ["backup"];
        line.stand_in(&repository, is_meant, self.program)
    }

    fn with_options(&self, mut line: TypedLine, command: &Command) -> Vec<OsString> {
        let profile = self.profile;
        let mut set = line.given.clone();
        set.extend(positional_ids(&line, command));
        let own = profile.of_command.get(command.get_name());
        let layers = [
            environment_layer(command, self.variables),
            profile_layer(command, own.map_or(&[], Vec::as_slice)),
            profile_layer(command, &of_all(command, &profile.common)),
        ];
        let mut added = Vec::new();
        for layer in layers {
            let kept: Vec<_> = layer
                .into_iter()
                .filter(|option| is_open(command, option.arg, &set))
                .collect();
            set.extend(kept.iter().map(|option| option.arg.get_id().to_string()));
            added.extend(kept.into_iter().flat_map(|option| option.words));
        }
        let sources = source_words(command, profile, &set);
        line.words.splice(line.begin..line.begin, added);
        line.words.extend(sources);
        line.words
    }
}

/// May a lower layer add the option?
fn is_open(command: &Command, arg: &Arg, set: &BTreeSet<String>) -> bool {
    let is_set = |arg: &Arg| set.contains(arg.get_id().as_str());
    // Destinations of a higher layer are meant instead of those of a lower one.
    let may_repeat = matches!(arg.get_action(), ArgAction::Append) && arg.get_id() != "to";
    if is_set(arg) && !may_repeat {
        return false;
    }
    let others = command.get_arguments().filter(|other| is_set(other));
    !others
        .into_iter()
        .any(|other| other.get_id() != arg.get_id() && do_conflict(command, arg, other))
}

fn do_conflict(command: &Command, one: &Arg, other: &Arg) -> bool {
    // clap knows a conflict on the side that declares it.
    lists_conflict(command, one, other) || lists_conflict(command, other, one)
}

fn lists_conflict(command: &Command, one: &Arg, other: &Arg) -> bool {
    let conflicts = command.get_arg_conflicts_with(one);
    conflicts.iter().any(|arg| arg.get_id() == other.get_id())
}

/// The ids of the words that are not options.
fn positional_ids(line: &TypedLine, command: &Command) -> Vec<String> {
    let ids = command
        .get_positionals()
        .map(|arg| arg.get_id().to_string());
    ids.take(line.positionals.len()).collect()
}

/// The PATHs of a backup, unless it has others.
fn source_words(command: &Command, profile: &Profile, set: &BTreeSet<String>) -> Vec<OsString> {
    let paths = command
        .get_positionals()
        .find(|arg| arg.get_id() == "paths");
    let is_wanted = |paths: &Arg| {
        let is_new = !set.contains("paths") && command.get_name() == "backup";
        is_new && is_open(command, paths, set)
    };
    if !paths.is_some_and(is_wanted) {
        return Vec::new();
    }
    profile.sources.iter().map(OsString::from).collect()
}

/// The options with a value whose variables are set.
fn environment_layer<'a>(command: &'a Command, variables: Variables<'_>) -> Vec<LayerOption<'a>> {
    let options = command.get_arguments().filter_map(|arg| {
        let name = arg.get_long()?;
        let value = variables(&variable_of(arg)?).filter(|value| !value.is_empty())?;
        let words = vec![option_word(name, &value)];
        Some(LayerOption { arg, words })
    });
    options
        .filter(|option| option.arg.get_id() != "stand_in")
        .collect()
}

/// The variable that stands for an option with a value.
fn variable_of(arg: &Arg) -> Option<String> {
    let name = arg.get_long().filter(|_| arg.get_action().takes_values())?;
    let name = name.to_uppercase().replace('-', "_");
    Some(format!("{VARIABLES}{name}"))
}

/// The variables that stand for options of a command.
pub(in crate::cli) fn option_variables(command: &Command) -> Vec<String> {
    command.get_arguments().filter_map(variable_of).collect()
}

fn profile_layer<'a>(command: &'a Command, options: &[ProfileOption]) -> Vec<LayerOption<'a>> {
    let of_command = options.iter().filter_map(|option| {
        let is_named = |arg: &&Arg| arg.get_long() == Some(&option.name);
        let arg = command.get_arguments().find(is_named)?;
        let words = match &option.value {
            OptionValue::Switch(true) => vec![format!("--{}", option.name).into()],
            OptionValue::Switch(false) => return None,
            OptionValue::Texts(texts) => texts
                .iter()
                .map(|text| option_word(&option.name, OsStr::new(text)))
                .collect(),
        };
        Some(LayerOption { arg, words })
    });
    of_command.collect()
}

/// The options above all tables, as far as the command takes them from there. A tag is set by a backup; other commands would
/// select by it, and miss the backups from before it was in the profile.
fn of_all(command: &Command, options: &[ProfileOption]) -> Vec<ProfileOption> {
    let is_meant = |option: &&ProfileOption| option.name != "tag" || command.get_name() == "backup";
    options.iter().filter(is_meant).cloned().collect()
}

fn option_word(name: &str, value: &OsStr) -> OsString {
    let mut word = OsString::from(format!("--{name}="));
    word.push(value);
    word
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Cli;
    use clap::CommandFactory;
    use std::path::Path;

    const WEB: &str = "
repository = '/backup'
sources = ['/srv/www', '/etc']
key = '/key'
workers = 1
host = 'web'
[backup]
compress = 'zstd:3'
exclude = ['*.tmp']
workers = 2
full = true
one-file-system = false
[forget]
keep-daily = 7
[verify]
for = '30m'
";

    fn expanded(line: &str, variables: &[(&str, &str)]) -> String {
        expanded_with(WEB, line, variables)
    }

    fn expanded_with(profile: &str, line: &str, variables: &[(&str, &str)]) -> String {
        let mut program = Cli::command();
        program.build();
        let profile = Profile::parse(profile, Path::new("web.toml"), &program).unwrap();
        let words = line.split(' ').map(OsString::from).collect();
        let line = TypedLine::read(&program, words);
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        let layers = DefaultLayers {
            program: &program,
            profile: &profile,
            variables: &variable,
        };
        let words = layers.added_to(line);
        words.join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn each_command_gets_the_options_that_it_has() {
        for (line, with_defaults) in [
            (
                "fullbore backup -P web",
                "fullbore backup --compress=zstd:3 --exclude=*.tmp --full --workers=2 --host=web --key=/key --to=/backup /srv/www /etc",
            ),
            (
                "fullbore -P web forget",
                "fullbore forget --host=web --keep-daily=7 --key=/key /backup",
            ),
            ("fullbore prune -P web", "fullbore prune --key=/key /backup"),
            // Options that conflict with an option of a higher layer are left out.
            (
                "fullbore verify -P web --json",
                "fullbore verify --for=30m --key=/key --workers=1 /backup --json",
            ),
            (
                "fullbore verify -P web --data",
                "fullbore verify --host=web --key=/key --workers=1 /backup --data",
            ),
            (
                "fullbore forget -P web 2026",
                "fullbore forget --host=web --key=/key /backup 2026",
            ),
            (
                "fullbore backup -P web --base x --to=/b /home",
                "fullbore backup --compress=zstd:3 --exclude=*.tmp --workers=2 --host=web --key=/key --base x --to=/b /home",
            ),
            (
                "fullbore backup -P web --connect host=db",
                "fullbore backup --compress=zstd:3 --exclude=*.tmp --full --workers=2 --host=web --key=/key --to=/backup --connect host=db",
            ),
            // One that can be repeated is added.
            (
                "fullbore list -P web @latest etc --key /other",
                "fullbore list --host=web --key=/key /backup@latest etc --key /other",
            ),
            (
                "fullbore key -P web list",
                "fullbore key list --key=/key /backup",
            ),
            (
                "fullbore bench -P web",
                "fullbore bench --workers=1 --key=/key",
            ),
        ] {
            let mut words: Vec<_> = expanded(line, &[]).split(' ').map(str::to_owned).collect();
            let mut expected: Vec<_> = with_defaults.split(' ').map(str::to_owned).collect();
            words.sort();
            expected.sort();
            assert_eq!(words, expected, "{line}");
        }
    }

    #[test]
    fn the_command_line_wins_over_the_environment_and_that_over_the_profile() {
        let workers = ("FULLBORE_WORKERS", "5");
        let name_of = |line: &str| {
            let words = expanded(line, &[workers]);
            let words = words.split(' ').filter(|word| word.contains("workers"));
            words.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(name_of("fullbore backup -P web"), ["--workers=5"]);
        assert_eq!(
            name_of("fullbore backup -P web --workers=6"),
            ["--workers=6"]
        );
        assert_eq!(name_of("fullbore prune -P web"), [""; 0]);
    }

    #[test]
    fn a_variable_stands_for_an_option_with_a_value_and_others_do_no_harm() {
        let repository = ("FULLBORE_REPOSITORY", "/b");
        for (line, variables, words) in [
            ("fullbore list", &[repository][..], "fullbore list /b"),
            ("fullbore list /c", &[repository], "fullbore list /c"),
            (
                "fullbore list @latest",
                &[repository],
                "fullbore list /b@latest",
            ),
            (
                "fullbore backup /s",
                &[repository],
                "fullbore backup --to=/b /s",
            ),
            (
                "fullbore backup /s --to /c",
                &[repository],
                "fullbore backup /s --to /c",
            ),
            (
                "fullbore list",
                &[("FULLBORE_HOST", "h")],
                "fullbore list --host=h",
            ),
            ("fullbore list", &[("FULLBORE_HOST", "")], "fullbore list"),
            (
                "fullbore list",
                &[
                    ("FULLBORE_POSTGRES", "x"),
                    ("FULLBORE_OBJECT_STORES", "x"),
                    ("FULLBORE_NO_TRICKS", "1"),
                    ("FULLBORE_JSON", "1"),
                ],
                "fullbore list",
            ),
            ("fullbore man", &[repository], "fullbore man"),
        ] {
            assert_eq!(expanded_with("", line, variables), words, "{line}");
        }
    }
}
