//! `create` and `start`: a run from nothing, in a container that is made with it or was there.
//!
//! ```text
//! look ─┬─ this key's run is there ────────────► new credentials, done
//!       ├─ another's is ───────────────────────► Unknown: the core looks, and settles it first
//!       ├─ somebody else has started it ─ end it ─┐
//!       ├─ it stands still ───────────────────────┤
//!       ├─ no container, and none may be made ─► RootLost: nothing is changed
//!       └─ no container ─ make it ────────────────┴─ receipt ─ credentials ─ socket ─┐
//!       ┌───────────────────────────────────────────────────────────────────────────┘
//!       └─ supervisor ─ start ─ look ─► done
//! ```
//!
//! The supervisor is put into the container's folder just before a start, and taken away before a stop and
//! where a start has come to nothing. A request to start that the daemon carries out after that has nothing
//! to run.
//!
//! A start that is refused, or whose PID 1 ends at once, has changed nothing that counts: the container
//! stays where it was there before, and goes where this effect has made it.

use std::sync::Arc;
use std::time::Duration;

use overwinter_driver::door::{self, Door};
use overwinter_driver::{
    Compute, ComputeSpec, Credentials, DriverError, EffectContext, Effected, Unusable,
};
use overwinter_lifecycle::ids::SandboxId;

use super::effected;
use crate::container::{body, name_of};
use crate::driver::{Live, Run, Shared, Turn, blocking, has_door, set_seen};
use crate::error::DockerError;
use crate::look::{Container, Look, Running, State};
use crate::receipt::Receipt;

/// Of an image that a container cannot be made from.
const GONE: &str =
    "the daemon has it no more, and another would not be what the sandbox was made from";
/// For the effect that is under way when it is noticed.
const UNASKED_WITHIN: Duration = Duration::from_secs(60);
const CONFLICT: u16 = 409;
const NOT_FOUND: u16 = 404;
/// Why a start is refused that may not make the container anew.
const ROOT_IS_LOST: &str = "its container was removed by somebody else, and with it all that was \
    written outside of the workspace; the workspace is as it was";
/// The remark of a start that had to make the container anew.
const ROOT_IS_NEW: &str =
    "the container was gone: its root layer is new, the workspace is as it was";

impl Shared {
    pub(crate) async fn create(
        self: &Arc<Self>,
        ctx: &EffectContext,
        spec: ComputeSpec,
        credentials: Credentials,
    ) -> Result<Effected, DriverError> {
        let turn = self.turns.next(ctx).await?;
        let sandbox = ctx.sandbox();
        let had_storage = self.home.has_storage(sandbox);
        let made = self.bring_up(&turn, ctx, &spec, &credentials, true).await;
        match made {
            Err(failed) if failed.surely_no_effect() && !had_storage => {
                self.remove_all(sandbox)
                    .await
                    .map_err(DockerError::unsettled)?;
                self.turns.forget(sandbox);
                Err(failed)
            }
            other => other,
        }
    }

    pub(crate) async fn begin_again(
        self: &Arc<Self>,
        ctx: &EffectContext,
        spec: ComputeSpec,
        credentials: Credentials,
    ) -> Result<Effected, DriverError> {
        let turn = self.turns.next(ctx).await?;
        if !self.home.has_storage(ctx.sandbox()) {
            return Err(DriverError::Missing("its storage is not there".to_owned()));
        }
        let anew = ctx.options.new_root;
        self.bring_up(&turn, ctx, &spec, &credentials, anew).await
    }

    /// `anew`: a container that is not there may be made.
    async fn bring_up(
        self: &Arc<Self>,
        turn: &Turn,
        ctx: &EffectContext,
        spec: &ComputeSpec,
        credentials: &Credentials,
        anew: bool,
    ) -> Result<Effected, DriverError> {
        let sandbox = ctx.sandbox();
        let look = self.look(sandbox).await;
        let (container, remark) = match look.map_err(DockerError::without_effect)? {
            Look::Running(running) if running.receipt.effect == ctx.key.native_name() => {
                return self.again(turn, running, credentials).await;
            }
            Look::Running(_) | Look::Moving(_) => {
                return Err(DriverError::Unknown(
                    "compute of an earlier effect is still there".to_owned(),
                ));
            }
            Look::Remains(container) => {
                turn.entry().set_live(None);
                self.end_foreign(&container).await?;
                (container, None)
            }
            Look::Nothing if !anew => {
                turn.entry().set_live(None);
                return Err(DriverError::Unusable {
                    why: Unusable::RootLost,
                    message: ROOT_IS_LOST.to_owned(),
                });
            }
            Look::Nothing => {
                turn.entry().set_live(None);
                let was_there = self.home.has_storage(sandbox);
                let made = self.make(ctx, spec).await?;
                (made, was_there.then(|| ROOT_IS_NEW.to_owned()))
            }
        };
        let held = ctx.incarnation;
        self.set_going(turn, ctx, &container, credentials).await?;
        let mut effected = effected(self.config.flavor, Compute::Live { held });
        effected.remarks.extend(remark);
        Ok(effected)
    }

    /// The call is repeated and what it makes is there: only its credentials may be new.
    async fn again(
        &self,
        turn: &Turn,
        running: Running,
        credentials: &Credentials,
    ) -> Result<Effected, DriverError> {
        let held = running.receipt.held;
        self.let_in(turn, &running, credentials)
            .await
            .map_err(DockerError::unsettled)?;
        Ok(effected(self.config.flavor, Compute::Live { held }))
    }

    /// What somebody else has started in the sandbox's container never attaches: its credentials were
    /// used by the run before.
    async fn end_foreign(&self, container: &Container) -> Result<(), DriverError> {
        match container.state {
            State::Still | State::Moving => Ok(()),
            State::Running | State::Paused => {
                let ended = self.engine.kill(&container.id).await;
                ended.map_err(DockerError::unsettled)
            }
        }
    }

    /// Looks at a start that no call waits for, and ends it unless it is what the newest start has left.
    /// Whether there was anything to end.
    pub(crate) async fn end_unasked(&self, sandbox: SandboxId) -> Result<bool, DriverError> {
        // Mostly it is an effect's own, told of late: for that nobody is made to wait.
        let look = self.look(sandbox).await;
        match look.map_err(DockerError::unsettled)? {
            Look::Nothing | Look::Running(_) | Look::Moving(_) => return Ok(false),
            Look::Remains(_) => {}
        }
        let entry = self.turns.entry(sandbox);
        let _alone = entry.alone(UNASKED_WITHIN).await?;
        match self.look(sandbox).await.map_err(DockerError::unsettled)? {
            Look::Nothing | Look::Running(_) | Look::Moving(_) => Ok(true),
            Look::Remains(container) => {
                let forbidden = self.home.forbid_start(sandbox);
                forbidden.map_err(DockerError::unsettled)?;
                self.end_foreign(&container).await?;
                Ok(true)
            }
        }
    }

    /// A container that was never started.
    async fn make(
        self: &Arc<Self>,
        ctx: &EffectContext,
        spec: &ComputeSpec,
    ) -> Result<Container, DriverError> {
        let sandbox = ctx.sandbox();
        let users = self.engine.users().await;
        let users = users.map_err(DockerError::without_effect)?;
        let shared = Arc::clone(self);
        let furnished = blocking(move || {
            shared.home.make(sandbox, users.root)?;
            shared.home.furnish(sandbox, users.base)
        });
        furnished.await.map_err(DockerError::without_effect)?;
        let image = self.engine.image(&spec.image.digest).await;
        let image = image.map_err(DockerError::without_effect)?.ok_or_else(|| {
            let image = spec.image.image.clone();
            DockerError::ImageMissing {
                image,
                why: GONE.to_owned(),
            }
            .without_effect()
        })?;
        let image = image.config.unwrap_or_default();
        let dir = self.home.sandbox(sandbox);
        let (gateway, pids) = (&self.config.gateway_id, self.config.default_pids);
        let mut body = body(ctx, spec, &image, &dir, gateway, pids);
        let host = self.engine.met().map_err(DockerError::without_effect)?;
        host.fit(&mut body);
        match self.engine.create(&name_of(sandbox), body).await {
            // One that an earlier call has asked for, and that came since the look, is as good.
            Ok(_) => {}
            Err(error) if error.status() == Some(CONFLICT) => {}
            Err(error) if error.status() == Some(NOT_FOUND) => {
                return Err(DriverError::Missing(error.to_string()));
            }
            Err(error) => return Err(host.explain(dir.path(), error).without_effect()),
        }
        match self.look(sandbox).await.map_err(DockerError::unsettled)? {
            Look::Remains(container) => Ok(container),
            Look::Nothing | Look::Moving(_) | Look::Running(_) => Err(DriverError::Unknown(
                "the container that was made is not as it was made".to_owned(),
            )),
        }
    }

    /// All that must be there before it starts; then it is started, and looked at.
    async fn set_going(
        self: &Arc<Self>,
        turn: &Turn,
        ctx: &EffectContext,
        container: &Container,
        credentials: &Credentials,
    ) -> Result<(), DriverError> {
        let sandbox = ctx.sandbox();
        let mut receipt = Receipt {
            effect: ctx.key.native_name(),
            held: ctx.incarnation,
            container: container.id.clone(),
            before: container.started.clone(),
            started: None,
            boot_id: self.boot_id.clone(),
        };
        let door = self.set_the_stage(sandbox, &receipt, credentials).await;
        let door = door.map_err(DockerError::without_effect)?;
        let run = Run {
            held: ctx.incarnation,
            paused: false,
        };
        turn.entry().set_live(Some(Live {
            run,
            seen: None,
            door: Some(door),
        }));
        let failed = match self.engine.start(&container.id).await {
            Ok(()) => None,
            Err(error @ DockerError::Away { .. }) => {
                turn.entry().set_live(None);
                let forbidden = self.home.forbid_start(sandbox);
                forbidden.map_err(DockerError::unsettled)?;
                return Err(error.without_effect());
            }
            // What was answered is over, and what was not is looked for.
            Err(error) => Some(error),
        };
        let look = self.look_after_start(sandbox).await;
        match look.map_err(DockerError::unsettled)? {
            Look::Running(running) => {
                // Saves guessing at each look. On a full disk it is guessed.
                set_seen(turn.entry(), &running);
                receipt.started = Some(running.container.started);
                let _ = receipt.write(&self.home.sandbox(sandbox));
                Ok(())
            }
            Look::Moving(_) => Err(DriverError::Unknown("it is in transition".to_owned())),
            Look::Nothing => Err(DriverError::Unknown("its container has gone".to_owned())),
            Look::Remains(now) => {
                turn.entry().set_live(None);
                let ended = DockerError::EndedAtOnce {
                    code: now.exit_code,
                    error: now.error,
                };
                Err(failed.unwrap_or(ended).without_effect())
            }
        }
    }

    /// What there is after a start that may have been asked for. Where that is nothing, it stays so.
    ///
    /// The supervisor is not taken away from what runs: the daemon answers before PID 1 has opened it.
    pub(crate) async fn look_after_start(&self, sandbox: SandboxId) -> Result<Look, DockerError> {
        match self.look(sandbox).await {
            Ok(found @ (Look::Running(_) | Look::Moving(_))) => Ok(found),
            Ok(Look::Nothing | Look::Remains(_)) => {
                self.home.forbid_start(sandbox)?;
                self.look(sandbox).await
            }
            Err(error) => {
                self.home.forbid_start(sandbox)?;
                Err(error)
            }
        }
    }

    /// The receipt first, by which whatever comes of the start is known; then credentials and socket, and
    /// what is to run last.
    async fn set_the_stage(
        self: &Arc<Self>,
        sandbox: SandboxId,
        receipt: &Receipt,
        credentials: &Credentials,
    ) -> Result<Door, DockerError> {
        let base = self.engine.users().await?.base;
        let (shared, receipt, credentials) =
            (Arc::clone(self), receipt.clone(), credentials.clone());
        blocking(move || {
            let dir = shared.home.sandbox(sandbox);
            shared.home.furnish(sandbox, base)?;
            receipt.write(&dir)?;
            door::write(&dir.attach(), base, &credentials)?;
            let door = shared.open_door(sandbox, base)?;
            shared.home.allow_start(sandbox)?;
            Ok(door)
        })
        .await
    }

    /// Within a runtime.
    fn open_door(&self, sandbox: SandboxId, base: u32) -> Result<Door, DockerError> {
        let folder = self.home.sandbox(sandbox).attach();
        let user = base + door::SUPERVISOR_ID;
        let port = Arc::clone(&self.port);
        Ok(Door::open(&folder, sandbox, base, user, port)?)
    }

    /// Opens the socket, unless it is open: so that who sees the credentials change finds it.
    pub(crate) async fn open_the_way(
        &self,
        entry: &crate::driver::Entry,
        sandbox: SandboxId,
        running: &Running,
    ) -> Result<(), DockerError> {
        if has_door(entry) {
            return Ok(());
        }
        let base = self.engine.users().await?.base;
        let door = Some(self.open_door(sandbox, base)?);
        let run = Run {
            held: running.receipt.held,
            paused: running.paused,
        };
        match &mut *entry.live() {
            Some(live) => live.door = door,
            none => {
                *none = Some(Live {
                    run,
                    seen: None,
                    door,
                });
            }
        }
        Ok(())
    }

    /// New credentials for a run that is there.
    pub(crate) async fn let_in(
        &self,
        turn: &Turn,
        running: &Running,
        credentials: &Credentials,
    ) -> Result<(), DockerError> {
        let sandbox = credentials.sandbox;
        self.open_the_way(turn.entry(), sandbox, running).await?;
        let base = self.engine.users().await?.base;
        let folder = self.home.sandbox(sandbox).attach();
        Ok(door::write(&folder, base, credentials)?)
    }
}
