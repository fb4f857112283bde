//! `fullbore repair`.

use crate::cli::{
    output::{aside, printed, told},
    values::threads,
};
use clap::Args;
use fullbore_engine::repair::{self, Repair, RepairStep};
use fullbore_format::{
    error::Result,
    text::{self, size::counted},
};
use fullbore_platform::metrics::meter::Meter;
use fullbore_storage::Storages;
use serde_json::json;
use std::{
    ffi::OsString,
    io::{IsTerminal, Write},
};

/// `fullbore repair`.
#[derive(Debug, Args)]
#[command(
    after_help = "EXIT CODES: 0 nothing is left to do, 1 failed, 2 wrong arguments, 4 steps are left to do. Damage in a segment \
                  is not removed: `fullbore verify --data` reports it until the segment is deleted, even if no file needs it."
)]
pub(in crate::cli) struct RepairArgs {
    /// A repository
    #[arg(value_name = "REPO", value_hint = clap::ValueHint::DirPath)]
    repository: OsString,
    /// Check every byte, not only the structure
    #[arg(long)]
    data: bool,
    /// Do the steps, instead of listing them or asking on a terminal
    #[arg(long)]
    yes: bool,
    /// Threads [default: one for each processor]
    ///
    /// The default is the number of processors that this process may use.
    #[arg(long, short = 'j', value_name = "N", value_parser = threads)]
    workers: Option<std::num::NonZeroUsize>,
    #[arg(from_global)]
    json: bool,
}

/// Say what is to be done, and do it if that is wanted.
///
/// # Errors
/// As [`Repair::plan`] and [`repair::execute`].
pub(in crate::cli) fn run(args: RepairArgs, storages: &Storages) -> Result<u8> {
    let workers = args.workers.unwrap_or_else(fullbore_platform::cores);
    let repair = Repair {
        storages: storages.clone(),
        repository: args.repository,
        data: args.data,
        workers,
    };
    let steps = repair.plan(&Meter::default())?;
    if steps.is_empty() && !repair.data && !args.json {
        return structure_is_whole(&repair);
    }
    printed(|out| {
        steps
            .iter()
            .try_for_each(|step| say_step(step, args.json, out))
            .map(|()| 0)
    })?;
    let possible = steps.iter().filter(|step| step.can_be_done()).count() as u64;
    // A program that reads JSON cannot be asked.
    let agreed = possible > 0 && (args.yes || !args.json && is_agreed());
    let left = if agreed {
        repair::execute(&steps)?
    } else {
        Vec::new()
    };
    left.iter()
        .for_each(|step| aside(format_args!("not done: {step}")));
    let done = if agreed {
        possible - left.len() as u64
    } else {
        0
    };
    // The steps that come first hide others: the plan is made again after them.
    let is_more = || {
        Ok(steps.iter().any(RepairStep::is_first) && !repair.plan(&Meter::default())?.is_empty())
    };
    let goes_on = agreed && (!left.is_empty() || is_more()?);
    if args.json {
        let line = json!({"type": "result", "possible_steps": possible, "done_steps": done, "again": goes_on});
        told(|out| text::json(out, &line).map(|()| 0))?;
    } else if steps.is_empty() {
        aside("nothing is to be done");
    } else if possible == 0 {
        aside("nothing of this can be repaired");
    } else if !agreed {
        aside("nothing was changed; --yes does it");
    } else {
        aside(format_args!("done: {}", counted(done, "step")));
        if !left.is_empty() {
            aside("run the same command again, for what was not done");
        } else if goes_on {
            aside(
                "run the same command again: there is more to be done, which could be found out only now",
            );
        }
    }
    let all_done = steps.is_empty() || agreed && steps.iter().all(RepairStep::can_be_done);
    Ok(if all_done && !goes_on { 0 } else { 4 })
}

/// Says that the structure needs no repair, and what is known of the data. Returns the exit code: 4 if data is lost.
fn structure_is_whole(repair: &Repair) -> Result<u8> {
    let known = repair.known_losses()?;
    let Some(first) = known.first() else {
        aside(
            "the structure is whole, and nothing is to be done; damaged data is found only by --data",
        );
        return Ok(0);
    };
    let more = match known.len() - 1 {
        0 => String::new(),
        more => format!(" and {}", counted(more as u64, "more backup")),
    };
    aside(format_args!(
        "the structure is whole; `fullbore verify` found lost files in backup {first:?}{more}: --data says what can be done"
    ));
    Ok(4)
}

fn say_step(step: &RepairStep, as_json: bool, out: &mut dyn Write) -> Result<()> {
    if as_json {
        let possible = step.can_be_done();
        return text::json(
            out,
            &json!({"type": "step", "what": step.what, "detail": step.detail, "possible": possible}),
        );
    }
    let verb = if step.can_be_done() { "to do" } else { "lost" };
    text::line(out, &format!("{verb}: {}", step.what))?;
    step.detail
        .iter()
        .try_for_each(|line| text::line(out, &format!("        {line}")))
}

/// Ask, if there is somebody to ask.
fn is_agreed() -> bool {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return false;
    }
    let _ = write!(std::io::stderr(), "Do this? [y/N] ");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}
