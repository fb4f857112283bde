//! Reads the server's summaries of its own WAL (versions 17 and newer).

use super::{Session, connect, rows::SqlRow};
use crate::{
    lsn::Lsn,
    wal_summaries::{Span, SummaryLine},
};
use fullbore_format::error::Result;
use postgres::{
    fallible_iterator::FallibleIterator,
    types::{ToSql, Type},
};
use std::{
    thread,
    time::{Duration, Instant},
};

const CONTENTS: &str = "SELECT reltablespace, reldatabase, relfilenode, relforknumber, \
    relblocknumber, is_limit_block \
    FROM pg_wal_summary_contents($1, $2::text::pg_lsn, $3::text::pg_lsn)";

impl Session {
    /// Returns whether the server summarizes its WAL.
    ///
    /// # Errors
    /// If the session is lost.
    pub fn is_summarizing(&mut self) -> Result<bool> {
        let query = "SELECT coalesce(current_setting('summarize_wal', true), 'off') = 'on'";
        self.row("could not ask for a setting", query, &[])?.get(0)
    }

    /// Waits up to `patience` until the server has summarized its WAL up to `lsn`; returns whether
    /// it has.
    ///
    /// # Errors
    /// If the session is lost, or the role may not read summaries.
    pub fn await_summaries(&mut self, lsn: Lsn, patience: Duration) -> Result<bool> {
        if !self.is_summarizing()? {
            return Ok(false);
        }
        let deadline = Instant::now() + patience;
        let state = "SELECT summarized_lsn::text FROM pg_get_wal_summarizer_state()";
        loop {
            let reached: String = self
                .row("could not ask for the summaries of the WAL", state, &[])?
                .get(0)?;
            if reached.parse::<Lsn>()? >= lsn {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the start time of the server, in seconds since 1970 to the microsecond.
    ///
    /// # Errors
    /// If the session is lost.
    pub fn server_start(&mut self) -> Result<String> {
        let sql = "SELECT extract(epoch FROM pg_postmaster_start_time())::text";
        self.row("could not ask when the server was started", sql, &[])?
            .get(0)
    }

    /// Returns the available summaries of a timeline.
    ///
    /// # Errors
    /// If the session is lost, or the role may not read summaries.
    pub fn summaries(&mut self, timeline: u32) -> Result<Vec<Span>> {
        let sql = "SELECT start_lsn::text, end_lsn::text FROM pg_available_wal_summaries() WHERE \
            tli = $1";
        let rows = self.rows(
            "could not list the summaries of the WAL",
            sql,
            &[(&i64::from(timeline), Type::INT8)],
        )?;
        rows.iter()
            .map(|row| Ok((row.get::<&str>(0)?.parse()?, row.get::<&str>(1)?.parse()?)))
            .collect()
    }

    /// Calls `each` with the lines of one summary, one after the other.
    ///
    /// # Errors
    /// If the session is lost, or the summary has been removed.
    pub fn read_summary(
        &mut self,
        timeline: u32,
        (start, end): Span,
        mut each: impl FnMut(SummaryLine),
    ) -> Result<()> {
        let timeline = i64::from(timeline);
        let start = start.to_string();
        let end = end.to_string();
        let params: [(&(dyn ToSql + Sync), Type); 3] = [
            (&timeline, Type::INT8),
            (&start, Type::TEXT),
            (&end, Type::TEXT),
        ];
        let mut rows = self
            .client()?
            .query_typed_raw(CONTENTS, params)
            .map_err(summary_error)?;
        // Row by row: a summary of a busy day does not fit into memory.
        while let Some(row) = rows.next().map_err(summary_error)? {
            let row = SqlRow(row);
            let relation = (row.get(0)?, row.get(1)?, row.get(2)?);
            let block = u32::try_from(row.get::<i64>(4)?).unwrap_or(0);
            each(SummaryLine {
                relation,
                fork: row.get(3)?,
                block,
                is_limit: row.get(5)?,
            });
        }
        Ok(())
    }
}

fn summary_error(error: postgres::Error) -> fullbore_format::error::Error {
    connect::server_error("could not read a summary of the WAL", &error)
}
