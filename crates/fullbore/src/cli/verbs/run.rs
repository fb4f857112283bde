//! `fullbore run`: the steps of a profile, one process each, with its hooks before and after.

use super::run_report::{ProfileRun, RunStep};
use crate::cli::{
    child::{self, ChildEnd},
    command_words::CommandWords,
    metrics_file::{MetricsFile, RunNumbers, metrics_path},
    newest::{newest_backups, newest_wal},
    options::OutputArgs,
    output::{aside, told},
    profile::{self, HookCommand, NamedProfile},
    report,
};
use clap::{Args, ValueHint};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    text,
};
use fullbore_storage::{Found, Location, Storages};
use std::{env, path::PathBuf, process, time::Instant};

/// `fullbore run`.
#[derive(Debug, Args)]
#[command(
    after_help = "The steps are backup, forget, prune and verify. Without rules of what to keep, forget and prune are skipped. \
                  After a failed backup, nothing is forgotten. \
                  verify reads 5% of the data, unless the profile says how much.\n\
                  EXIT CODES: 0 done, 1 a step or a hook failed, 2 wrong arguments, 3 done but something could not be read, 4 damage was found"
)]
pub(in crate::cli) struct RunProfileArgs {
    /// The profile
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Write numbers of the run to this file, for node_exporter
    ///
    /// The file of an earlier run is replaced, but no other file.
    #[arg(long, value_name = "FILE.prom", value_parser = metrics_path, value_hint = ValueHint::FilePath)]
    metrics: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// The share of the data that is verified each time.
const USUAL_SHARE: [&str; 2] = ["--sample", "5%"];
/// Options that say how much is verified, by their clap ids.
const SHARES: [&str; 4] = ["time", "sample", "data", "against"];

/// Runs the profile. The exit code is that of the worst step.
pub(in crate::cli) fn run(args: RunProfileArgs, storages: &Storages) -> Result<u8> {
    let profile = named_profile("run")?;
    let metrics = args.metrics.as_deref();
    let metrics = metrics
        .map(|path| MetricsFile::new(path, Some(&profile.name)))
        .transpose()?;
    profile.check_hooks()?;
    let steps = profile.steps().into_iter();
    let commands: Vec<_> = steps
        .flat_map(|step| all_step_words(profile, step).map(move |words| (step, words)))
        .collect();
    let night = ProfileNight {
        profile,
        output: &args.output,
        variables: profile.used_variables(),
    };
    let mut run = ProfileRun::new(&profile.name);
    night.all(&mut run, &commands);
    run.end();
    night.print(&run)?;
    if let Some(metrics) = metrics {
        let target = commands.iter().find_map(|(_, words)| words.value("to"));
        let newest =
            target.map(|target| newest_backups(storages, target, profile.own_source().as_ref()));
        let wal = target.and_then(|target| newest_wal(storages, target).ok());
        metrics.write(&RunNumbers {
            newest: newest.and_then(|found| found.inspect_err(warn).ok()),
            wal: wal.unwrap_or_default(),
            ..run.numbers()
        });
    }
    child::end_if_interrupted();
    Ok(run.exit_code())
}

/// The profile that the command line names.
///
/// # Errors
/// [`ErrorKind::Usage`] if it names none.
pub(super) fn named_profile(verb: &str) -> Result<&'static NamedProfile> {
    profile::of_process().ok_or_else(|| {
        Error::new(ErrorKind::Usage, "no profile was named").hint(format!(
            "say `fullbore {verb} NAME`, or `fullbore {verb} --config FILE`"
        ))
    })
}

/// Returns the words of a step, as it is run.
pub(super) fn step_words(profile: &NamedProfile, step: &str) -> CommandWords<'static> {
    let words = match step {
        "backup" => profile.words_of(&["backup", "--no-create"]),
        "verify" if !says_share(profile) => {
            profile.words_of(&["verify", USUAL_SHARE[0], USUAL_SHARE[1]])
        }
        step => profile.words_of(&[step]),
    };
    // The numbers are those of the whole run.
    words.without("metrics")
}

/// Returns the words of a step, for the repository of the profile and for each further one. A backup
/// is one step for all of them.
fn all_step_words(
    profile: &NamedProfile,
    step: &str,
) -> impl Iterator<Item = CommandWords<'static>> {
    let also = match step {
        "backup" => &[][..],
        _ => &profile.profile.also,
    };
    let further: Vec<_> = { also.iter() }
        .map(|name| further_words(profile, step, name))
        .collect();
    [step_words(profile, step)].into_iter().chain(further)
}

/// Returns the words of a step for a further repository.
fn further_words(profile: &NamedProfile, step: &str, name: &str) -> CommandWords<'static> {
    let repository = format!("--repository={name}");
    let words = match step {
        "verify" if !says_share(profile) => {
            profile.words_of(&[step, &repository, USUAL_SHARE[0], USUAL_SHARE[1]])
        }
        step => profile.words_of(&[step, &repository]),
    };
    words.without("metrics")
}

/// Returns whether the profile says how much is verified.
fn says_share(profile: &NamedProfile) -> bool {
    let words = profile.words_of(&["verify"]);
    SHARES.iter().any(|share| words.has(share))
}

fn warn(error: &Error) {
    aside(format_args!("warning: {}", error.line()));
}

/// One run of a profile.
struct ProfileNight<'a> {
    profile: &'a NamedProfile,
    output: &'a OutputArgs,
    /// Variables that the steps do not get: their words have the values.
    variables: Vec<String>,
}

impl ProfileNight<'_> {
    fn all(&self, run: &mut ProfileRun, commands: &[(&str, CommandWords<'_>)]) {
        if self.hook(run, "before") {
            self.steps(run, commands);
        }
        self.hook(run, run.outcome().hook());
        self.hook(run, "after");
    }

    fn steps(&self, run: &mut ProfileRun, commands: &[(&str, CommandWords<'_>)]) {
        for (step, words) in commands {
            if child::is_interrupted() {
                run.fail("interrupted".to_owned());
                return;
            }
            let forgets = matches!(*step, "forget" | "prune");
            let step = if forgets && run.has_failed_backup() {
                RunStep::skipped(step, "the backup failed")
            } else if run.has_failed_backup() && self.lacks_repository() {
                // The backup has said so.
                RunStep::skipped(step, "the repository is not there")
            } else {
                self.step(step, words)
            };
            self.tell(&step);
            run.steps.push(step);
        }
    }

    /// Returns whether the repository is a directory of this host that is not there, as without its disk. Further repositories may be.
    fn lacks_repository(&self) -> bool {
        let profile = &self.profile.profile;
        let repository = profile.repository.as_ref();
        let repository = repository.map(|name| Location::parse(name.as_ref()));
        let is_alone = profile.also.is_empty();
        is_alone
            && matches!(repository, Some(Ok(place)) if place.as_local().is_some() && place.look() != Found::Repository)
    }

    fn step(&self, name: &str, words: &CommandWords<'_>) -> RunStep {
        let begun = Instant::now();
        let mut command = process::Command::new(program_file());
        let mut added = vec!["--json".into()];
        if matches!(name, "backup" | "verify") && !words.has("quiet") {
            added.push("--quiet".into()); // no progress
        }
        command.args(words.clone().into_words_with(&added));
        self.variables.iter().for_each(|name| {
            command.env_remove(name);
        });
        let seconds = || begun.elapsed().as_secs_f64();
        match child::run_step(&mut command) {
            Ok(end) => RunStep::ended(name, &end, seconds()),
            Err(error) => {
                aside(report::error(&error));
                RunStep::failed(name, error.line(), seconds())
            }
        }
    }

    fn tell(&self, step: &RunStep) {
        if self.output.json {
            let _ = told(|out| text::json(out, &step.json()).map(|()| 0));
        } else if !self.output.quiet || step.code > 0 {
            step.lines().iter().for_each(aside);
        } else {
            step.warnings().iter().for_each(aside);
        }
    }

    /// Runs a hook, if the profile has it. Returns whether the run may go on.
    fn hook(&self, run: &mut ProfileRun, name: &str) -> bool {
        let Some(hook) = self.profile.profile.hooks.named(name) else {
            return true;
        };
        let Some(why) = failure_of(hook, run.json(Some(name)).to_string()) else {
            return true;
        };
        let steps = if name == "before" {
            "; no step ran"
        } else {
            ""
        };
        let message = format!("the hook {name:?} failed: {why}{steps}");
        aside(format_args!("error: {message}"));
        run.fail(message);
        false
    }

    fn print(&self, run: &ProfileRun) -> Result<()> {
        if self.output.json {
            return told(|out| text::json(out, &run.json(None)).map(|()| 0)).map(drop);
        }
        if !self.output.quiet {
            aside(run.last_line());
        }
        Ok(())
    }
}

/// Why a hook failed, or `None`.
fn failure_of(hook: &HookCommand, input: String) -> Option<String> {
    let end = child::run_hook(&hook.words, input, hook.timeout);
    end.map_or_else(|error| Some(error.line()), |end: ChildEnd| end.failure())
}

/// This program, also if its file was replaced meanwhile.
fn program_file() -> PathBuf {
    env::current_exe()
        .ok()
        .filter(|file| file.exists())
        .unwrap_or_else(|| "/proc/self/exe".into())
}
