//! The file of the report about a run.
//!
//! A command that another host has started writes the numbers of its report, and that host draws the page ([`ReportNumbers`]).

use super::{
    html_page::{BEGINS, ReportNumbers},
    limit::RunLimit,
    output::aside,
    output_file::{EarlierFile, OutputFile},
};
use fullbore_format::{
    error::{Error, ErrorKind, Result, reason},
    text::{
        self,
        size::{bytes, seconds},
    },
};
use fullbore_platform as platform;
use fullbore_platform::metrics::meter::MeterSample;
use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Write as _},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// What stands before the path of a report of which the numbers are wanted and not the page.
pub(super) const FAR_NUMBERS: &str = "numbers:";

/// The file that the page is written to.
#[derive(Debug)]
pub(super) struct HtmlReport {
    path: PathBuf,
    output: ReportOutput,
}

#[derive(Debug)]
enum ReportOutput {
    /// The page.
    Page(OutputFile),
    /// The numbers, to the host that has started this command.
    Numbers(File),
}

impl HtmlReport {
    /// Looks at the place before the run, so that an error is reported before any work is done. An earlier report stays until the
    /// page is complete.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the file is not a report; the system's.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let message = format!("could not write the report \"{}\"", path.display());
        let failed = |e| Error::io(&message, e);
        let output = match far_numbers(path) {
            Some(path) => {
                ReportOutput::Numbers(File::options().write(true).open(path).map_err(failed)?)
            }
            None => ReportOutput::Page(page_file(path, &message)?),
        };
        Ok(Self {
            path: path.to_owned(),
            output,
        })
    }

    /// Writes the page. A failure is a warning: the run itself succeeded.
    pub(super) fn print(self, page: &HtmlPage<'_>) {
        let numbers = page.numbers();
        let text = match self.output {
            ReportOutput::Numbers(_) => numbers.to_json(),
            ReportOutput::Page(_) => numbers.render(),
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

    fn write(self, text: &[u8]) {
        let written = match &self.output {
            ReportOutput::Page(file) => file.replace(text, None),
            ReportOutput::Numbers(file) => write_all(file, text),
        };
        if let Err(error) = written {
            aside(format!(
                "warning: could not write the report \"{}\": {}",
                self.path.display(),
                reason(&error)
            ));
        }
    }
}

fn write_all(mut file: &File, text: &[u8]) -> io::Result<()> {
    file.write_all(text)
}

/// The place of a page, unless another file is there.
fn page_file(path: &Path, what: &str) -> Result<OutputFile> {
    let failed = |e| Error::io(what, e);
    let output = OutputFile::new_or_device(path).map_err(failed)?;
    let earlier = output.earlier(BEGINS.len() as u64).map_err(failed)?;
    if earlier.as_ref().is_some_and(is_foreign) {
        let message = format!("{what}: another file is there");
        return Err(Error::new(ErrorKind::Usage, message).hint("give the report a name of its own"));
    }
    Ok(output)
}

fn is_foreign(earlier: &EarlierFile) -> bool {
    !earlier.bytes.is_empty() && earlier.bytes != BEGINS.as_bytes()
}

/// The path behind the word that asks for numbers.
fn far_numbers(path: &Path) -> Option<&Path> {
    let word = path.as_os_str().as_bytes();
    let rest = word.strip_prefix(FAR_NUMBERS.as_bytes())?;
    Some(Path::new(OsStr::from_bytes(rest)))
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
    use crate::cli::limit::RunEnds;
    use fullbore_platform::metrics::{hardware::RunKind, meter::Meter};
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
