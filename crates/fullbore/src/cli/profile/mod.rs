//! Profiles: files with the options of commands, and variables of the environment that stand for options.
//!
//! Both become words of the command line before clap parses it, so that a value in a profile is checked, and refused, as a typed one.

mod file;
mod hooks;
mod layers;
mod places;
mod search;

use file::{Profile, STEPS};
pub(super) use hooks::HookCommand;
pub(super) use layers::option_variables;
pub(super) use search::SYSTEM;

use super::{
    command_line::{self, TypedLine},
    command_words::CommandWords,
    output::aside,
};
use clap::{Args, Command, ValueHint};
use fullbore_engine::backup::paths::source_path;
use fullbore_format::error::Result;
use fullbore_platform as platform;
use fullbore_repository::select::OwnSource;
use fullbore_storage::Location;
use layers::DefaultLayers;
use std::{
    collections::BTreeSet,
    env,
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// The options that name a profile. They are taken before clap parses the words; clap knows them for the help.
#[derive(Debug, Args, Clone)]
pub(super) struct ProfileArgs {
    /// Take options from the profile NAME
    ///
    /// The profile is /etc/fullbore/NAME.toml, or NAME.toml in ~/.config/fullbore.
    #[arg(
        long,
        short = 'P',
        value_name = "NAME",
        global = true,
        display_order = 898,
        hide_short_help = true
    )]
    profile: Option<String>,
    /// Take options from the profile in this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, global = true, display_order = 899, hide_short_help = true)]
    config: Option<PathBuf>,
}

/// A profile that was read, and where it is.
#[derive(Debug)]
pub(super) struct NamedProfile {
    /// The name of the file, without its ending.
    pub(super) name: String,
    pub(super) file: PathBuf,
    pub(super) profile: Profile,
    /// The program as clap knows it.
    program: &'static Command,
    /// The first file or directory on the way to it that another user may change.
    changeable: Option<PathBuf>,
}

/// The profile of this process.
static PROFILE: OnceLock<NamedProfile> = OnceLock::new();

/// Commands whose first word is the name of a profile.
const NAMING: [&[&str]; 3] = [&["run"], &["config", "check"], &["systemd"]];

/// Variables that name a profile.
const PROFILE_VARIABLE: &str = "FULLBORE_PROFILE";
const CONFIG_VARIABLE: &str = "FULLBORE_CONFIG";

/// The profile of this process, if it has one.
pub(super) fn of_process() -> Option<&'static NamedProfile> {
    PROFILE.get()
}

/// Reads the profile of this process, and adds its options and those of the environment to the words.
///
/// # Errors
/// As [`named`] and [`in_file`].
pub(super) fn effective_words(program: &Command, line: TypedLine) -> Result<Vec<OsString>> {
    let nothing = Profile::default();
    let profile = match profile_of(&line)? {
        Some(profile) => &PROFILE.get_or_init(|| profile).profile,
        None => &nothing,
    };
    let layers = DefaultLayers {
        program,
        profile,
        variables: &|name| env::var_os(name),
    };
    Ok(layers.added_to(line))
}

fn profile_of(line: &TypedLine) -> Result<Option<NamedProfile>> {
    let names: Vec<_> = line.command.iter().map(String::as_str).collect();
    let is_naming = NAMING.contains(&&names[..]);
    let first = line.positionals.first().filter(|_| is_naming);
    let first = first.map(|index| line.words[*index].clone());
    let is_explicit = line.profile.is_some() || line.config.is_some() || first.is_some();
    let variable = |name| env::var_os(name).filter(|value| !is_explicit && !value.is_empty());
    let config = line.config.clone().or_else(|| variable(CONFIG_VARIABLE));
    if let Some(config) = config {
        return in_file(config.into()).map(Some);
    }
    let name = first.or_else(|| line.profile.clone());
    let name = name.or_else(|| variable(PROFILE_VARIABLE));
    name.map(|name| named(&name)).transpose()
}

/// Reads the profile with a name.
///
/// # Errors
/// [`ErrorKind::NotFound`] if there is none, else as [`in_file`].
pub(super) fn named(name: &OsStr) -> Result<NamedProfile> {
    in_file(search::find(name, &search::directories())?)
}

/// Reads the profile in a file.
///
/// # Errors
/// The system's; [`ErrorKind::Usage`] for a file that is no profile.
pub(super) fn in_file(file: PathBuf) -> Result<NamedProfile> {
    let program = command_line::program();
    let read = search::read(&file)?;
    let profile = Profile::parse(&read.text, &file, program)?;
    if let Some(changeable) = &read.changeable {
        aside(format_args!(
            "warning: another user may change the profile {file:?}, by {changeable:?}: `chmod go-w` it"
        ));
    }
    let name = file.file_stem().unwrap_or_default();
    let name = name.to_string_lossy().into_owned();
    Ok(NamedProfile {
        name,
        file,
        profile,
        program,
        changeable: read.changeable,
    })
}

/// The files of all profiles.
pub(super) fn all_files() -> Vec<PathBuf> {
    let names = search::names(&search::directories());
    names.into_iter().map(|(_, file)| file).collect()
}

impl NamedProfile {
    /// Refuses hooks that another user may change: they run with the rights of this process.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`](fullbore_format::error::ErrorKind::Permission).
    pub(super) fn check_hooks(&self) -> Result<()> {
        match &self.changeable {
            Some(changeable) if !self.profile.hooks.0.is_empty() => Err(search::changeable_error(
                "run the hooks of",
                &self.file,
                changeable,
            )),
            _ => Ok(()),
        }
    }

    /// The source of its backups; `None` for a cluster, a stream, and the paths of another host, whose names are known
    /// only there.
    pub(super) fn own_source(&self) -> Option<OwnSource> {
        let words = self.words_of(&["backup"]);
        let host = words.value("host").and_then(OsStr::to_str);
        let paths = self.profile.sources.iter().map(|source| {
            let is_path = matches!(Location::parse(source.as_ref()), Ok(Location::Local(_)));
            let is_tree = is_path && !source.starts_with("postgres");
            let path = is_tree.then(|| source_path(Path::new(source)).ok())??;
            Some(path.into_os_string().into_vec())
        });
        let paths: BTreeSet<Vec<u8>> = paths.collect::<Option<_>>()?;
        (!paths.is_empty()).then(|| OwnSource {
            host: host.map_or_else(platform::host_name, str::to_owned),
            paths,
        })
    }

    /// Returns the words of a command with the options of this profile and of the environment.
    pub(super) fn words_of(&self, words: &[&str]) -> CommandWords<'static> {
        let mut typed = vec![
            "fullbore".into(),
            "--config".into(),
            self.file.clone().into(),
        ];
        typed.extend(words.iter().map(OsString::from));
        let layers = DefaultLayers {
            program: self.program,
            profile: &self.profile,
            variables: &|name: &str| env::var_os(name),
        };
        let added = layers.added_to(TypedLine::read(self.program, typed));
        CommandWords::read(self.program, added.into_iter().skip(1))
    }

    /// The variables of the environment that [`NamedProfile::words_of`] has turned into words.
    pub(super) fn used_variables(&self) -> Vec<String> {
        let commands = self.program.get_subcommands();
        let options = commands.flat_map(option_variables);
        let own = [
            PROFILE_VARIABLE,
            CONFIG_VARIABLE,
            layers::REPOSITORY_VARIABLE,
        ];
        options.chain(own.map(str::to_owned)).collect()
    }

    /// The steps of `fullbore run`: those of the file, or all that the profile has options for.
    pub(super) fn steps(&self) -> Vec<&str> {
        if let Some(steps) = &self.profile.steps {
            let is_named = |step: &&str| steps.iter().any(|named| named == step);
            return STEPS.into_iter().filter(is_named).collect();
        }
        let forgets = self.profile.has_rules();
        let is_usual = |step: &&str| forgets || !matches!(*step, "forget" | "prune");
        STEPS.into_iter().filter(is_usual).collect()
    }
}
