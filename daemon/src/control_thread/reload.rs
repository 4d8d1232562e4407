//! Reading the config again (SIGHUP, `systemctl reload`): keys that can change at run time change,
//! and the log names the rest. A wrong config changes nothing.

use std::{io, time::Duration};

use tracing::{error, info, warn};

use super::Daemon;
use crate::config::{Config, ConfigError, LogConfig, NetConfig};

impl Daemon {
    /// Reads the config file and applies it as far as that goes without a restart.
    pub(super) fn reload(&mut self) {
        self.service.reloading();
        let file = self.source.file.display().to_string();
        match Config::load(&self.source.file) {
            Ok(new) => self.apply(&file, &new),
            Err(problem) => {
                let remedy = sandbox_remedy(&problem, self.sandbox.restricts_files());
                error!(file, problem = %format_args!("{problem}{remedy}"), "the config is wrong: nothing was changed");
            }
        }
        self.service.reloaded(&self.status_line());
    }

    fn apply(&mut self, file: &str, new: &Config) {
        let changes = self.config.changes(new);
        self.config.apply(new);
        // Without `..`: with a new key this does not compile, until its value is passed on.
        let LogConfig { level, target: _ } = self.config.log;
        let NetConfig { resolve_timeout_ms, denied_peers: _ } = self.config.net;
        (self.source.set_log_level)(level);
        self.net.set_resolve_timeout(Duration::from_millis(resolve_timeout_ms.into()));
        self.clients.set_limits(&self.config.limits);
        self.deny_peers();
        for at in changes.attach.iter().copied() {
            self.reattach(at, self.config.devices[at].clone());
        }
        if changes.is_empty() {
            info!(file, "config read again: no change");
        }
        if !changes.applied.is_empty() {
            info!(file, keys = changes.applied.join(", "), "config read again: applied");
        }
        if !changes.restart.is_empty() {
            warn!(file, keys = changes.restart.join(", "), "config read again: restart roced to apply these keys");
        }
    }
}

/// Continues the text of a problem: a file that may not be read may be one that a symbolic link
/// leads to since the daemon confined itself.
fn sandbox_remedy(problem: &ConfigError, restricts_files: bool) -> &'static str {
    match problem {
        ConfigError::Read { error, .. } if restricts_files && error.kind() == io::ErrorKind::PermissionDenied => {
            ", or it is outside of the folders of the sandbox: restart roced (docs/sandbox.md)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sandbox_is_named_where_it_may_deny_the_file() {
        let problem = |kind: io::ErrorKind| ConfigError::Read { path: "/x/l.toml".into(), error: kind.into() };
        let denied = problem(io::ErrorKind::PermissionDenied);
        let text = format!("{denied}{}", sandbox_remedy(&denied, true));
        assert!(text.ends_with("must be able to read it, or it is outside of the folders of the sandbox: restart roced (docs/sandbox.md)"), "{text}");
        assert_eq!(sandbox_remedy(&denied, false), "");
        assert_eq!(sandbox_remedy(&problem(io::ErrorKind::NotFound), true), "");
    }
}
