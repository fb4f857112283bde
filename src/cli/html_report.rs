//! The file of the report about a run.
//!
//! A command that another host has started writes the numbers of its report, and that host draws the page ([`ReportNumbers`]).

use super::{
    html_page::{BEGINS, ReportNumbers},
    limit::RunLimit,
    output::aside,
};
use crate::{
    command::serve::FAR_NUMBERS,
    error::{Error, ErrorKind, Result, reason},
    metrics::meter::MeterSample,
    platform,
    text::{
        self,
        size::{bytes, seconds},
    },
};
use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// The file that the page is written to.
#[derive(Debug)]
pub(super) struct HtmlReport {
    path: PathBuf,
    file: File,
    /// Was the file created for the page, and is it still empty?
    is_bare: bool,
    /// Are the numbers wanted, and not the page?
    is_numbers: bool,
}

impl HtmlReport {
    /// Opens the file before the run, so that an error is reported before any work is done. An earlier report in it stays until
    /// [`ReportFile::write`].
    ///
    /// # Errors
    /// [`Kind::Usage`] if the file is not a report; the system's.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let numbers = far_numbers(path);
        let (path, is_numbers) = (numbers.unwrap_or(path), numbers.is_some());
        let failed = |e| {
            Error::io(
                format!("could not write the report \"{}\"", path.display()),
                e,
            )
        };
        let is_bare = !path.exists();
        if !is_bare && !may_be_replaced(path).map_err(failed)? {
            let what = format!(
                "could not write the report \"{}\": another file is there",
                path.display()
            );
            return Err(
                Error::new(ErrorKind::Usage, what).hint("give the report a name of its own")
            );
        }
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed)?;
        Ok(Self {
            path: path.to_owned(),
            file,
            is_bare,
            is_numbers,
        })
    }

    /// Writes the page. A failure is a warning: the run itself succeeded.
    pub(super) fn print(self, page: &HtmlPage<'_>) {
        let numbers = page.numbers();
        let text = match self.is_numbers {
            true => numbers.to_json(),
            false => numbers.render(),
        };
        self.write(text.as_bytes());
    }

    /// Draws the page of a command on another host from the numbers that it has sent, unless they are none.
    pub(super) fn print_numbers(self, numbers: &[u8]) {
        match ReportNumbers::read(numbers) {
            Some(numbers) => self.write(numbers.render().as_bytes()),
            None => aside("warning: the other host has sent no report"),
        }
    }

    fn write(mut self, page: &[u8]) {
        let _ = self.file.set_len(0); // fails for a pipe, which has no length
        if let Err(error) = self.file.write_all(page) {
            aside(format!(
                "warning: could not write the report \"{}\": {}",
                self.path.display(),
                reason(&error)
            ));
        }
        self.is_bare = false;
    }
}

impl Drop for HtmlReport {
    /// Deletes the empty file of a run that failed.
    fn drop(&mut self) {
        if self.is_bare {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The path behind the word that asks for numbers.
fn far_numbers(path: &Path) -> Option<&Path> {
    let word = path.as_os_str().as_bytes();
    let rest = word.strip_prefix(FAR_NUMBERS.as_bytes())?;
    Some(Path::new(OsStr::from_bytes(rest)))
}

/// Is the file an earlier report, empty, or not a regular file?
fn may_be_replaced(path: &Path) -> io::Result<bool> {
    let found = path.metadata()?;
    if !found.is_file() || found.len() == 0 {
        return Ok(true);
    }
    let mut start = Vec::new();
    File::open(path)?
        .take(BEGINS.len() as u64)
        .read_to_end(&mut start)?;
    Ok(start == BEGINS.as_bytes())
}

/// The text of the page.
pub(super) struct HtmlPage<'a> {
    /// Heading.
    pub(super) title: &'a str,
    /// Facts about the run, by name.
    pub(super) facts: Vec<(&'static str, String)>,
    /// The lines that the command printed.
    pub(super) lines: &'a [String],
    /// The limit of the run.
    pub(super) limit: &'a RunLimit,
    /// The run over time.
    pub(super) timeline: &'a [MeterSample],
}

impl HtmlPage<'_> {
    fn numbers(&self) -> ReportNumbers {
        ReportNumbers::of(
            self.title,
            &self.facts,
            self.lines,
            self.limit,
            self.timeline,
        )
    }
}

/// Facts about the run of this process: `source` as it was backed up, and the exit code.
pub(super) fn facts(source: &str, exit_code: u8) -> Vec<(&'static str, String)> {
    let result = match exit_code {
        0 => "done",
        3 => "done, but something could not be read",
        4 => "damage was found",
        _ => "failed",
    };
    vec![
        ("host", platform::host_name()),
        ("source", source.to_owned()),
        ("ended", text::local_time::local_now()),
        ("program", format!("fullbore {}", env!("CARGO_PKG_VERSION"))),
        ("exit code", format!("{exit_code}: {result}")),
    ]
}

/// Peak memory and processor time of this process, for the report.
pub(super) fn machine() -> String {
    let cpu = platform::process_cpu_seconds();
    format!(
        "{} of processor time, {} of memory at most",
        seconds(cpu),
        bytes(platform::peak_rss_bytes())
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cli::limit::RunEnds,
        metrics::{hardware::RunKind, meter::Meter},
    };
    use std::num::NonZeroUsize;

    #[test]
    fn a_page_holds_its_pictures_and_no_reference_to_elsewhere() {
        let meter = Meter::default();
        (0..5).for_each(|_| {
            meter.record_point();
        });
        let verdict = meter.verdict();
        let ends = RunEnds::default();
        let workers = NonZeroUsize::MIN;
        let limit = RunLimit::judge(&meter, &verdict, RunKind::Backup, &ends, workers, None);
        let page = HtmlPage {
            title: "backup <x>",
            facts: facts("host:/a&b", 3),
            lines: &["a & b".to_owned()],
            limit: &limit,
            timeline: &meter.timeline(),
        };
        let html = page.numbers().render();
        assert_eq!(html.matches("<svg").count(), 4);
        assert!(html.contains("backup &lt;x&gt;") && html.contains("a &amp; b"));
        assert!(html.contains("host:/a&amp;b") && html.contains("3: done, but"));
        assert!(html.contains("prefers-color-scheme:dark"));
        assert!(!html.contains("://") && !html.contains("src="));
        assert!(html.contains("content=\"default-src 'none'; style-src 'unsafe-inline'\""));
        let sent = ReportNumbers::read(page.numbers().to_json().as_bytes()).unwrap();
        assert_eq!(sent.render(), html, "another host draws the same page");
    }
}
