//! The limit of a run: one line for people, and members of the result for programs.

use fullbore_platform as platform;
use fullbore_platform::metrics::{
    hardware::{EndKind, HardwareVerdict, Limit, RunKind, RunSetting},
    meter::{LimitVerdict, Meter, Side},
};
use fullbore_repository::open::place;
use fullbore_storage::{CloudCounts, Location, Storages};
use serde_json::{Value, json};
use std::{ffi::OsStr, num::NonZeroUsize};

/// Seconds of a run that is too short for its limit to matter.
const SHORT_SECONDS: f64 = 2.0;

/// The smallest share that a line names.
const NAMED_SHARE: f64 = 0.05;

/// The ends of a run, and the host that does the work if a person may take it for another.
#[derive(Debug, Clone, Default)]
pub(super) struct RunEnds {
    source: EndKind,
    sink: EndKind,
    host: Option<String>,
    storages: Storages,
}

impl RunEnds {
    /// The ends of a run that reads `from` and writes `to`; of `None`, files of this host.
    pub(super) fn of(storages: &Storages, from: Option<&OsStr>, to: Option<&OsStr>) -> Self {
        let locations = [from, to].map(|word| Some(place(word?).ok()?.0));
        let is_far_half = locations
            .iter()
            .flatten()
            .any(|location| matches!(location, Location::Peer(_)));
        let [source, sink] = locations.map(|location| location.map_or(EndKind::Disk, end_kind));
        Self {
            source,
            sink,
            host: is_far_half.then(platform::host_name),
            storages: storages.clone(),
        }
    }
}

fn end_kind(location: Location) -> EndKind {
    match location {
        Location::Standard => EndKind::Program,
        Location::Cloud { .. } => EndKind::Store,
        Location::Ssh { .. } | Location::Server(_) | Location::Peer(_) => EndKind::FarHost,
        Location::Local(_) | Location::Volumes(_) | Location::Tape(_) | Location::Null => {
            EndKind::Disk
        }
    }
}

/// The limit of a run that is over.
#[derive(Debug)]
pub(super) struct RunLimit {
    pub(super) verdict: LimitVerdict,
    hardware: HardwareVerdict,
    /// The words for the source, the workers and the sink.
    pub(super) names: [&'static str; 3],
    host: Option<String>,
    /// The requests to object stores in the run.
    pub(super) counts: Option<CloudCounts>,
}

impl RunLimit {
    /// Judges a run with this verdict. `max_rate` is in bytes a second.
    pub(super) fn judge(
        meter: &Meter,
        verdict: &LimitVerdict,
        kind: RunKind,
        ends: &RunEnds,
        workers: NonZeroUsize,
        max_rate: Option<u64>,
    ) -> Self {
        let counts = ends.storages.cloud_counts();
        let waits = meter.waits.long_waits();
        let setting = RunSetting {
            kind,
            source: ends.source,
            sink: ends.sink,
            cores: platform::cores().get(),
            workers: workers.get(),
            max_rate,
            limited_seconds: { counts.as_ref() }.map_or(0.0, |counts| counts.limited.as_secs_f64()),
            is_throttled: counts.as_ref().is_some_and(|counts| counts.throttled > 0),
            server_seconds: waits.iter().map(|wait| wait.time.as_secs_f64()).sum(),
        };
        Self {
            verdict: *verdict,
            hardware: meter.hardware(verdict, &setting),
            names: match kind {
                RunKind::Backup | RunKind::Copy => ["source", "processors", "destination"],
                RunKind::Restore | RunKind::Verify => ["backup", "processors", "target"],
            },
            host: ends.host.clone(),
            counts,
        }
    }

    /// The limiting hardware or setting.
    pub(super) fn limit(&self) -> Limit {
        self.hardware.limit
    }

    /// The line for people, unless the run was short and they did not ask for more.
    pub(super) fn line(&self, is_verbose: bool) -> Option<String> {
        (is_verbose || self.verdict.seconds >= SHORT_SECONDS).then(|| self.text())
    }

    /// `limit: processor, 97 % of 2 cores: compressing 61 %, reading 20 %`, or
    /// `limit: disk write, busy 82 %; the source could give 12.8×, the workers could do 3.1×`.
    pub(super) fn text(&self) -> String {
        let HardwareVerdict { limit, others, .. } = &self.hardware;
        let mut line = format!("limit: {}", limit.name());
        line += &match limit {
            Limit::Processor => self.processors(),
            Limit::MaxRate | Limit::TransferLimit | Limit::Workers | Limit::Server => {
                let own = percent(self.hardware.own);
                format!("; the processors were {own} busy")
            }
            _ => self.busy_part(),
        };
        if *others >= 2.0 * NAMED_SHARE {
            let others = percent(*others);
            line += &format!("; other programs used {others} of the processors");
        }
        line
    }

    /// Kinds of work, with their shares of the CPU time of this process.
    pub(super) fn work(&self) -> &[(&'static str, f64)] {
        &self.hardware.work
    }

    /// How busy the processors were: `97 % of 2 cores; other programs used 3 % of the processors`.
    pub(super) fn processor_text(&self) -> String {
        let HardwareVerdict { own, others, .. } = &self.hardware;
        let (own, others) = (percent(*own), percent(*others));
        format!(
            "{own} of {}; other programs used {others} of the processors",
            self.core_text()
        )
    }

    fn core_text(&self) -> String {
        match self.hardware.cores {
            1 => "1 core".to_owned(),
            cores => format!("{cores} cores"),
        }
    }

    fn processors(&self) -> String {
        let HardwareVerdict { own, work, .. } = &self.hardware;
        let owner = { self.host.as_ref() }.map_or_else(String::new, |host| format!(" of {host}"));
        let cores = self.core_text();
        let parts: Vec<_> = { work.iter() }
            .filter(|(_, share)| *share >= NAMED_SHARE)
            .map(|(name, share)| format!("{name} {}", percent(*share)))
            .collect();
        format!(
            "{owner}, {} of {cores}: {}",
            percent(*own),
            parts.join(", ")
        )
    }

    /// The part that waits for a device, and the speed that the other two could reach.
    fn busy_part(&self) -> String {
        let could = ["could give", "could do", "could take"];
        let others = [Side::Source, Side::Workers, Side::Sink]
            .into_iter()
            .filter(|side| *side != self.verdict.limit)
            .map(|side| {
                let index = side as usize;
                let speed = times(self.verdict.headroom(side));
                format!("the {} {} {speed}", self.names[index], could[index])
            });
        let busy = percent(self.verdict.of(self.verdict.limit).busy);
        format!(", busy {busy}; {}", others.collect::<Vec<_>>().join(", "))
    }

    /// Adds `limit`, `shares` and `hardware` to a result.
    pub(super) fn add_to(&self, result: &mut Value) {
        let HardwareVerdict {
            limit,
            cores,
            own,
            others,
            work,
        } = &self.hardware;
        let work: serde_json::Map<_, _> = { work.iter() }
            .map(|(name, share)| ((*name).to_owned(), rounded(*share).into()))
            .collect();
        result["limit"] = self.verdict.limit.name().into();
        result["shares"] = shares(&self.verdict);
        result["hardware"] = json!({"limit": limit.name(), "cores": cores, "own": rounded(*own),
            "others": rounded(*others), "work": work});
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn rounded(share: f64) -> f64 {
    (share * 1000.0).round() / 1000.0
}

/// A part that was idle nearly all the time gives no reliable measure of its speed.
fn times(headroom: f64) -> String {
    if headroom > 99.0 {
        "over 99×".to_owned()
    } else {
        format!("{headroom:.1}×")
    }
}

/// Busy, starved and blocked shares of each side, by name.
pub(super) fn shares(verdict: &LimitVerdict) -> Value {
    let sides = [Side::Source, Side::Workers, Side::Sink].into_iter();
    let shares = sides.map(|side| (side.name().to_owned(), side_shares(verdict, side)));
    shares.collect::<serde_json::Map<_, _>>().into()
}

fn side_shares(verdict: &LimitVerdict, side: Side) -> Value {
    let share = verdict.of(side);
    json!({
        "busy": rounded(share.busy),
        "starved": rounded(share.starved),
        "blocked": rounded(share.blocked),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_platform::metrics::meter::Shares;

    #[test]
    fn a_headroom_that_nobody_measured_is_not_told_as_one() {
        assert_eq!(
            [1.0, 29.04, 99.0, 99.1, 1000.0].map(times),
            ["1.0×", "29.0×", "99.0×", "over 99×", "over 99×"]
        );
    }

    fn run(limit: Limit, side: Side, seconds: f64) -> RunLimit {
        let busy = |busy| Shares {
            busy,
            ..Shares::default()
        };
        RunLimit {
            verdict: LimitVerdict {
                limit: side,
                shares: [0.1, 0.25, 0.82].map(busy),
                seconds,
            },
            hardware: HardwareVerdict {
                limit,
                cores: 2,
                own: 0.97,
                others: 0.01,
                work: vec![("compressing", 0.61), ("reading", 0.2), ("other", 0.02)],
            },
            names: ["source", "processors", "destination"],
            host: None,
            counts: None,
        }
    }

    #[test]
    fn the_line_names_the_hardware_and_the_work() {
        let busy = run(Limit::Processor, Side::Workers, 3.0);
        assert_eq!(
            busy.text(),
            "limit: processor, 97 % of 2 cores: compressing 61 %, reading 20 %"
        );
        let mut far = run(Limit::Processor, Side::Workers, 3.0);
        (far.host, far.hardware.others) = (Some("db1".to_owned()), 0.4);
        assert_eq!(
            far.text(),
            "limit: processor of db1, 97 % of 2 cores: compressing 61 %, reading 20 %; other programs used 40 % of the processors"
        );
        assert_eq!(
            run(Limit::DiskWrite, Side::Sink, 3.0).text(),
            "limit: disk write, busy 82 %; the source could give 10.0×, the processors could do 4.0×"
        );
        assert_eq!(
            run(Limit::MaxRate, Side::Source, 3.0).text(),
            "limit: --max-rate; the processors were 97 % busy"
        );
    }

    #[test]
    fn the_limit_of_a_short_run_is_told_only_to_those_who_ask() {
        let short = run(Limit::DiskWrite, Side::Sink, 1.9);
        assert_eq!(short.line(false), None);
        assert!(short.line(true).is_some());
        assert!(run(Limit::DiskWrite, Side::Sink, 2.1).line(false).is_some());
    }
}
