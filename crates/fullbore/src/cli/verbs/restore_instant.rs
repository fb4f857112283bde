//! `fullbore restore --instant`.

use super::{
    instant_args::InstantArgs,
    restore_args::{RestoreArgs, plan},
};
use crate::cli::{
    metered_run::MeteredRun,
    options::OutputArgs,
    output::{aside, is_terminal, printed},
    report,
};
use fullbore_engine::{
    instant::{InstantProgress, InstantRole, Phase, ServedTree},
    restore::Restore,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    text::{
        self,
        size::{bytes, rate, seconds},
    },
};
use fullbore_storage::{Location, Storages};
use serde_json::{Value, json};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    flag,
};
use std::{
    path::Path,
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::Duration,
};

/// Time between two looks at the progress.
const LOOK: Duration = Duration::from_millis(200);
const SHORT_LOOK: Duration = Duration::from_millis(10);
/// Looks without progress after which damage is the end.
const STUCK_LOOKS: u32 = 25;

/// Runs an instant restore, or a part of one, if it is asked for. Returns its exit code.
///
/// # Errors
/// Those of the restore.
pub(super) fn run(args: &RestoreArgs, storages: &Storages) -> Result<Option<u8>> {
    if !args.instant.instant {
        return Ok(None);
    }
    refuse_far_target(args)?;
    let restore = plan(args, storages)?;
    match InstantRole::of_this_process()? {
        Some(InstantRole::Guardian(fds)) => {
            let stop = Arc::new(AtomicBool::new(false));
            for signal in [SIGTERM, SIGINT] {
                let registered = flag::register(signal, stop.clone());
                registered.map_err(|e| Error::io("could not begin", e))?;
            }
            restore.guard(fds, &args.instant.options(), &stop)?;
        }
        Some(InstantRole::Worker(fds)) => restore.fill(fds, &args.instant.options())?,
        None if args.instant.status => return status(&restore, &args.output).map(Some),
        None => return serve(&restore, args, storages).map(Some),
    }
    Ok(Some(0))
}

fn refuse_far_target(args: &RestoreArgs) -> Result<()> {
    let target = args.to.as_ref().map(|to| Location::parse(to.as_os_str()));
    match target.transpose()? {
        Some(Location::Ssh { host, .. }) => {
            let message = format!("cannot restore to host {host:?} with --instant");
            Err(Error::new(ErrorKind::Unsupported, message)
                .because("the processes that serve the files run on the host of the target")
                .hint("run the command there, with the repository as ssh://"))
        }
        _ => Ok(()),
    }
}

/// Makes the tree, or goes on with it, and says how far it is.
fn serve(restore: &Restore, args: &RestoreArgs, storages: &Storages) -> Result<u8> {
    let options = args.instant.options();
    let run = MeteredRun::new(storages, &args.output, report::ENDS);
    let served = run.work(|meter| {
        if args.instant.resume {
            restore.resume_instant(&options)
        } else {
            restore.begin_instant(&options, meter)
        }
    })?;
    let code = served
        .summary
        .as_ref()
        .map_or(0, |summary| summary.exit_code());
    let lines = served_lines(&served, &args.instant);
    if !args.instant.wait {
        run.end(&lines, || served_json(&served, None));
        return Ok(code);
    }
    if !args.output.json && !args.output.quiet {
        lines.iter().for_each(aside);
    }
    let last = wait(&served, &args.output)?;
    let whole = served.elapsed().as_secs_f64();
    let lines = [whole_line(&served, &last, whole)];
    run.end(&lines, || served_json(&served, Some(whole)));
    Ok(code)
}

fn served_lines(served: &ServedTree, args: &InstantArgs) -> Vec<String> {
    let summary = served.summary.as_ref();
    let notes = summary.into_iter().flat_map(|summary| &summary.notes);
    let mut lines: Vec<_> = notes.map(|note| format!("note: {note}")).collect();
    let progress = served.progress();
    lines.push(format!(
        "served after {}: \"{}\" can be used, {} are here and {} follow",
        seconds(served.served_seconds),
        served.target.display(),
        bytes(served.early_bytes() + progress.here_bytes),
        bytes(progress.total_bytes.saturating_sub(progress.here_bytes)),
    ));
    lines.extend(
        served
            .accepting_seconds
            .map(|time| format!("accepting after {}: the server answers", seconds(time))),
    );
    if served.accepting_seconds.is_none() {
        let steps = summary.into_iter().flat_map(|summary| &summary.next);
        lines.extend(steps.map(|step| format!("next: {step}")));
    }
    if !args.wait && progress.here_bytes < progress.total_bytes {
        lines.push("the rest follows in the background; --status shows how far it is".to_owned());
    }
    lines
}

fn whole_line(served: &ServedTree, last: &InstantProgress, whole: f64) -> String {
    let all = served.early_bytes() + last.total_bytes;
    let accepting = served.accepting_seconds;
    let accepting = accepting.map(|time| format!(", {} to the server", seconds(time)));
    format!(
        "all of it is there: {} to the first byte{}, {} to all {}, {}",
        seconds(served.served_seconds),
        accepting.unwrap_or_default(),
        seconds(whole),
        bytes(all),
        rate(all, whole),
    )
}

fn served_json(served: &ServedTree, whole: Option<f64>) -> Value {
    let id = served.summary.as_ref().map(|summary| &summary.id);
    let progress = served.progress();
    json!({
        "type": "result",
        "id": id,
        "served_seconds": served.served_seconds,
        "accepting_seconds": served.accepting_seconds,
        "whole_seconds": whole,
        "early_bytes": served.early_bytes(),
        "placeholder_bytes": progress.total_bytes,
    })
}

/// Waits until everything is there.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if all is there but damaged parts; [`ErrorKind::System`] if nobody serves any more.
fn wait(served: &ServedTree, output: &OutputArgs) -> Result<InstantProgress> {
    let is_shown = is_terminal() && !output.quiet && !output.json;
    let mut stuck = 0;
    let mut before = 0;
    loop {
        let progress = served.progress();
        if progress.phase == Phase::Whole {
            if !progress.is_served {
                return Ok(progress);
            }
            // The guardian removes its state now.
            thread::sleep(SHORT_LOOK);
            continue;
        }
        stuck = if progress.here_bytes == before {
            stuck + 1
        } else {
            0
        };
        before = progress.here_bytes;
        if progress.damaged_bytes > 0 && stuck > STUCK_LOOKS {
            let lost = bytes(progress.damaged_bytes);
            return Err(Error::corrupt(format!("{lost} are damaged in the backup"))
                .hint("their readers get an error; `fullbore verify --data` names them"));
        }
        if !progress.is_served && progress.phase != Phase::Whole {
            // The end of a guardian may come between both looks.
            let is_whole = served.progress().phase == Phase::Whole;
            return is_whole.then_some(progress).ok_or_else(not_served);
        }
        if is_shown {
            eprint!("\r{}   ", progress_text(&progress));
        }
        thread::sleep(LOOK);
    }
}

fn not_served() -> Error {
    Error::new(ErrorKind::System, "the files are not served any more")
        .hint("run the same command with --resume")
}

fn progress_text(progress: &InstantProgress) -> String {
    format!(
        "{} of {} are here, {} were asked for",
        bytes(progress.here_bytes),
        bytes(progress.total_bytes),
        bytes(progress.asked_bytes)
    )
}

/// Shows how far an instant restore is.
fn status(restore: &Restore, output: &OutputArgs) -> Result<u8> {
    let progress = InstantProgress::of(&restore.to).map_err(|error| match error.kind {
        ErrorKind::NotFound => none_under_way(&restore.to),
        _ => error,
    })?;
    printed(|out| {
        if output.json {
            text::json(out, &status_json(&progress))?;
            return Ok(0);
        }
        text::line(out, &progress_text(&progress))?;
        if progress.damaged_bytes > 0 {
            let lost = bytes(progress.damaged_bytes);
            text::line(
                out,
                &format!("{lost} are damaged in the backup: their readers get an error"),
            )?;
        }
        let served = match progress.is_served {
            true => format!("served by process {}", progress.guardian),
            false => "not served: run the same command with --resume; readers may see zeros, unless --start made their server".to_owned(),
        };
        text::line(out, &served)?;
        Ok(0)
    })
}

fn none_under_way(target: &Path) -> Error {
    let message = format!("could not find an instant restore of {target:?}");
    Error::new(ErrorKind::NotFound, message).because("it is complete, or was not begun")
}

fn status_json(progress: &InstantProgress) -> Value {
    json!({
        "type": "result",
        "total_bytes": progress.total_bytes,
        "here_bytes": progress.here_bytes,
        "asked_bytes": progress.asked_bytes,
        "damaged_bytes": progress.damaged_bytes,
        "events": progress.events,
        "workers": progress.workers,
        "retaken": progress.retaken,
        "guardian": progress.guardian,
        "worker": progress.worker,
        "served": progress.is_served,
    })
}
