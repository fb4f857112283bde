//! `fullbore restore`.

use super::{
    far_restore,
    restore_args::{RestoreArgs, plan},
    restore_plan, restore_preview,
    restore_report::{self, say_refusal},
};
use crate::cli::{
    limit::{RunEnds, RunLimit},
    metered_run::{JudgedRun, MeteredRun, ReportHead},
    options::OutputArgs,
    output::{aside, printed},
    report,
};
use fullbore_engine::restore::{Restore, Summary, delta::Delta};
use fullbore_format::{
    entry::EntryPath,
    error::{Result, quoted},
    root::EntryName,
    text,
};
use fullbore_platform::metrics::hardware::RunKind;
use serde_json::json;

pub(in crate::cli) fn run(args: RestoreArgs) -> Result<u8> {
    if let Some(code) = far_restore::restore(&args)? {
        return Ok(code);
    }
    args.delta.check()?;
    let ends = RunEnds::of(Some(&args.from), None);
    let restore = plan(&args)?;
    let say = |paths: &[Vec<u8>]| say_removed(paths, args.output.json, args.output.quiet);
    if args.dry_run {
        let deletion = args.delta.deletion();
        let is_allowed = args.overwrite.is_some() || args.delta.is_delta();
        return restore_preview::run(&restore, deletion, is_allowed, &args.output);
    }
    if args.plan {
        let deletion = args.delta.deletion();
        if deletion.is_some() {
            let refusal = Delta::new(&restore, deletion, &say).plan_deletions()?;
            refusal.into_iter().for_each(|error| say_refusal(&error));
        }
        return restore_plan::run(restore, args.to, args.output.json);
    }
    let run = MeteredRun::new(&args.output, report::ENDS);
    let run = run.with_report(args.run.report.as_deref())?;
    let summary = run.work(|meter| match args.delta.is_delta() {
        true => Delta::new(&restore, args.delta.deletion(), &say).run(meter),
        false => restore.run(meter),
    })?;
    let judged = JudgedRun {
        kind: RunKind::Restore,
        ends: &ends,
        workers: restore.workers,
        max_rate: None,
    };
    let limit = run.limit(None, &judged);
    print_end(&restore, &summary, &args.output, run, &limit);
    Ok(summary.exit_code())
}

/// Prints the end of a restore, and writes its report.
fn print_end(
    restore: &Restore,
    summary: &Summary,
    output: &OutputArgs,
    run: MeteredRun,
    limit: &RunLimit,
) {
    let lines = restore_report::lines(summary, run.meter(), limit, output.verbose, &restore.to);
    run.end(&lines, || restore_report::json(summary, run.meter(), limit));
    if output.quiet || output.json {
        let needed = summary.next[..summary.needed].iter();
        needed.for_each(|step| aside(format_args!("next: {step}")));
    }
    let damage = report::damage(&summary.damage, output.verbose);
    damage.iter().for_each(aside);
    let head = ReportHead {
        title: format!("restore of {}", summary.id),
        source: &summary.source,
        exit_code: summary.exit_code(),
    };
    run.print_report(&head, lines, limit);
}

/// Say what will be removed. A reader that has gone has read enough.
///
/// # Errors
/// Of standard output: what is not told is not removed.
fn say_removed(paths: &[EntryPath], json: bool, quiet: bool) -> Result<()> {
    printed(|out| {
        for path in paths.iter().filter(|_| !quiet || json) {
            let line = match json {
                true => json!({"type": "delete", "path": EntryName(path.clone())}).to_string(),
                false => format!("delete: {}", quoted(path)),
            };
            text::line(out, &line)?;
        }
        Ok(0)
    })
    .map(drop)
}
