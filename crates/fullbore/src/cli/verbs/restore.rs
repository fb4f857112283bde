//! `fullbore restore`.

use super::{
    far_restore, interactive,
    restore_args::{RestoreArgs, plan},
    restore_instant, restore_plan, restore_preview,
    restore_report::{self, say_refusal},
};
use crate::cli::{
    limit::{RunEnds, RunLimit},
    metered_run::{JudgedRun, MeteredRun, ReportHead},
    options::OutputArgs,
    output::aside,
    report,
};
use fullbore_engine::restore::{Restore, Summary};
use fullbore_format::error::Result;
use fullbore_platform::metrics::hardware::RunKind;
use fullbore_storage::Storages;

pub(in crate::cli) fn run(args: RestoreArgs, storages: &Storages) -> Result<u8> {
    if args.interactive {
        return interactive::run(&args, storages);
    }
    if let Some(code) = restore_instant::run(&args, storages)? {
        return Ok(code);
    }
    if let Some(code) = far_restore::restore(&args, storages)? {
        return Ok(code);
    }
    args.delta.check()?;
    let ends = RunEnds::of(storages, Some(&args.from), None);
    let restore = plan(&args, storages)?;
    if args.dry_run {
        return restore_preview::run(&restore, &args.output);
    }
    if args.plan {
        let planned = restore.planned_removal()?;
        (restore.say_removed)(&planned.paths)?;
        planned.refusal.iter().for_each(say_refusal);
        return restore_plan::run(restore, args.to, args.output.json);
    }
    let run = MeteredRun::new(storages, &args.output, report::ENDS);
    let run = run.with_report(args.run.report.as_deref())?;
    let summary = run.work(|meter| restore.run(meter))?;
    finish(&restore, &summary, &args.output, run, &ends);
    Ok(summary.exit_code())
}

/// Judges the limit of a restore, prints its end, and writes its report.
pub(super) fn finish(
    restore: &Restore,
    summary: &Summary,
    output: &OutputArgs,
    run: MeteredRun,
    ends: &RunEnds,
) {
    let judged = JudgedRun {
        kind: RunKind::Restore,
        ends,
        workers: restore.workers,
        max_rate: None,
    };
    let limit = run.limit(None, &judged);
    print_end(restore, summary, output, run, &limit);
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
    // Those of a cluster say what its server may harm, or will lack.
    if output.quiet && !output.json && !summary.next.is_empty() {
        let notes = summary.notes.iter();
        notes.for_each(|note| aside(format_args!("note: {note}")));
    }
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
