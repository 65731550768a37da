-- slicewise.lua: what slurmctld does with a job that asks for GPUs.
--
-- A site's own job_submit.lua loads this file with `dofile` in protected lines, as
-- etc/job_submit.lua shows; this file never replaces job_submit.lua. It runs under the Lua that
-- slurmctld links, 5.1 to 5.4, with lua-socket and lua-cjson for that Lua.
--
-- job_submit asks the daemon on its admission socket (slicewise_line.lua) and obeys the answer. It
-- never waits longer than `timeout_s` in all, since slurmctld stands still meanwhile. job_modify
-- decides without the daemon. `job_desc.assoc_qos` is never read: that crashes slurmctld 24.11.

local M = {}

--- The version of this file; slurmctld may have loaded an older one.
M.VERSION = "1.0"

local directory = debug.getinfo(1, "S").source:match("^@(.*/)") or ""
local request = dofile(directory .. "slicewise_request.lua")
local bounds = assert(loadfile(directory .. "slicewise_bounds.lua"))(request)
local change = assert(loadfile(directory .. "slicewise_change.lua"))(request, bounds)

-- If a library that the line needs is missing, jobs are decided later, as while the daemon is away.
local has_line, line = pcall(dofile, directory .. "slicewise_line.lua")
if not has_line then
    local problem = tostring(line):match("[^\n]*")
    slurm.log_error("slicewise: the daemon can't be asked: %s", problem)
    line = { ask = function() return nil, problem end }
end

local text = request.text

-- Slurm prints an error code's own text after our lines, so the codes must fit them.
local DENIED = slurm.ESLURM_ACCESS_DENIED or 2002
local POLICY = slurm.ESLURM_ACCOUNTING_POLICY or 2050

local config = {
    socket = "/run/slicewise/admission/admission.sock",
    off_file = "/etc/slicewise/off",
    mode = "enforce",
    timeout_s = 0.010,
    without_gpu = "refuse",
    notices = "asked",
}
local MODES = { observe = true, advise = true, enforce = true }
local WITHOUT_GPU = { refuse = true, allow = true }
local NOTICES = { asked = true, always = true }

-- The uid of SlurmUser: slurmctld runs as SlurmUser, so it is this process's own.
local function own_uid()
    local file = io.open("/proc/self/status", "r")
    if not file then
        return nil
    end
    local status = file:read("*a")
    file:close()
    return tonumber(status:match("\nUid:%s*%d+%s+(%d+)"))
end

local KEYS = {
    socket = true, off_file = true, mode = true, timeout_s = true, partitions = true,
    slurm_uid = true, without_gpu = true, notices = true, shares = true, beside = true,
}

--- Set options and raise an error for unknown keys and wrong values. Options: `socket` (path),
-- `off_file` (path: while that file exists and SlurmUser can read it, nothing is done at all),
-- `mode` (observe, advise, enforce), `timeout_s` (for one whole question), `partitions` (list of
-- the managed ones; unset: jobs of all partitions are asked about), `beside` (list of partitions
-- that are not managed, on nodes of managed ones), `without_gpu` (what happens to jobs in managed
-- partitions that ask for no GPU: refuse, allow), `notices` (whether the user of a job that is
-- accepted is told what he might not expect of it: asked, by SLICEWISE_EXPLAIN=1, or always),
-- `shares` (by GPU type: how many `cpus` and `memory_mib` a job may have for each GPU, unset: any;
-- and how many `threads` a core has there, unset: 1) and, only where /proc can't tell it,
-- `slurm_uid`.
function M.configure(options)
    for key, value in pairs(options) do
        if not KEYS[key] then
            error("slicewise: configure knows no key " .. tostring(key), 2)
        end
        config[key] = value
    end
    if not MODES[config.mode] then
        error("slicewise: mode must be observe, advise or enforce, not "
            .. tostring(config.mode), 2)
    end
    if type(config.timeout_s) ~= "number" or config.timeout_s <= 0 or config.timeout_s > 1 then
        error("slicewise: timeout_s must be above 0 and at most 1", 2)
    end
    if not WITHOUT_GPU[config.without_gpu] then
        error("slicewise: without_gpu must be refuse or allow, not "
            .. tostring(config.without_gpu), 2)
    end
    if not NOTICES[config.notices] then
        error("slicewise: notices must be asked or always, not " .. tostring(config.notices), 2)
    end
    config.slurm_uid = config.slurm_uid or own_uid()
end

local was_off = false

-- Whether the kill switch is on; each change is logged once.
local function is_off()
    local file = io.open(config.off_file, "r")
    if file then
        file:close()
    end
    if was_off ~= (file ~= nil) then
        was_off = not was_off
        slurm.log_info("slicewise: %s %s", was_off and "off because of" or "on again without",
            config.off_file)
    end
    return was_off
end

-- Whether one of the named partitions is managed. A job that names none may run in any.
local function is_managed(partition)
    for _, managed in ipairs(config.partitions or {}) do
        if ("," .. (partition or managed) .. ","):find("," .. managed .. ",", 1, true) then
            return true
        end
    end
    return config.partitions == nil
end

-- The first of these partitions that is not managed, on nodes of one that is; nil if none is.
local function beside_among(partitions)
    for _, name in ipairs(config.beside or {}) do
        if ("," .. (partitions or "") .. ","):find("," .. name .. ",", 1, true) then
            return name
        end
    end
    return nil
end

local function new_token()
    local file = assert(io.open("/dev/urandom", "rb"))
    -- Without this a buffer would read 4 KiB.
    file:setvbuf("no")
    local bytes = file:read(8)
    file:close()
    return ("%02x"):rep(8):format(bytes:byte(1, 8))
end

local function add_tag(job_desc, tag)
    local before = text(job_desc.admin_comment)
    job_desc.admin_comment = before and (before .. " " .. tag) or tag
end

local ANSWERED_TEXTS = request.with_request_fields("gres", "qos")

-- Keeps steps of a job that left the type open from asking for the type "auto". Of srun and salloc
-- they can't be kept: who starts one of these is told, for srun names another cause when it fails.
local function mend_steps(job)
    if job.must_wait and job.environment then
        request.ask_for_any_type_in_steps(job.environment)
    elseif job.question.interactive and request.gres_of(job.question):find("gpu:auto", 1, true) then
        slurm.log_user("srun can't find the type auto in a job: name a type, or start srun without "
            .. "GPU options in what salloc --gres=gpu:auto opens.")
    end
end

-- Tenants that have their own QOS in Slurm, as the daemon has said.
local has_own_qos = {}
local OWN_QOS, BORROWED = "slicewise_", "_borrowed"

-- Whether a QOS preempts jobs on borrowed quota.
local function is_own_qos(qos)
    return qos:find(OWN_QOS, 1, true) == 1 and qos:sub(-#BORROWED) ~= BORROWED
end

-- Makes a service's array what it must be, whatever its script says: its tasks are given back by a
-- requeue, and each is one replica on as many nodes as the daemon says, with a task on each.
local function make_slots(job_desc, answer)
    local nodes = type(answer.nodes) == "number" and answer.nodes or 1
    job_desc.requeue = 1
    job_desc.min_nodes = nodes
    job_desc.max_nodes = nodes
    if nodes > 1 then
        job_desc.num_tasks = nodes
        job_desc.ntasks_per_node = 1
    end
end

local function admit(job_desc, job, answer)
    for _, field in ipairs(ANSWERED_TEXTS) do
        if text(answer[field]) then
            job_desc[field] = answer[field]
        end
    end
    if type(answer.site_factor) == "number" then
        job_desc.site_factor = answer.site_factor
    end
    if text(answer.tag) then
        add_tag(job_desc, answer.tag)
        has_own_qos[answer.tag:match(" tenant=(%S+)") or ""] = true
    end
    if answer.hold == true then
        job_desc.priority = 0
        make_slots(job_desc, answer)
    end
    mend_steps(job)
end

-- Whether slurmctld shows a user the messages of job_modify. Before it had all error codes (22.05
-- has eight), it logs an error for each log_user there and shows the user nothing.
local function tells_in_modify()
    return slurm.ESLURM_INVALID_QOS ~= nil
end

local function tell(answer, ...)
    for _, key in ipairs({ ... }) do
        if text(answer[key]) then
            slurm.log_user("%s", answer[key])
        end
    end
end

-- Tells the user of a job that is accepted. Programs that start jobs by themselves read a job's id
-- from all that sbatch prints, on stderr too, so plain sbatch says nothing of its own accord.
local function notify(job_desc, ...)
    if config.notices == "always" or request.asks_for_words(job_desc) then
        tell(...)
    end
end

local function refuse(answer)
    tell(answer, "message", "hint", "code")
    if tostring(answer.code):sub(1, 9) == "SW-QUOTA-" then
        return POLICY
    end
    return DENIED
end

-- Tells in mode advise why a job would be refused. sbatch shows that it was submitted behind all
-- of this, and a workflow tool not at all.
local function advise(answer)
    tell(answer, "message", "hint", "code")
    slurm.log_user("%s", "This is advice only: the job is accepted. In mode enforce it would be "
        .. "refused.")
end

-- Logs that a fixed rule is broken; returns whether this mode refuses the job for it.
local function is_refused_by_rule(wrong, job_desc)
    slurm.log_info("slicewise: %s: a job of uid %s", wrong.code, request.digits(job_desc.user_id))
    if config.mode == "advise" then
        advise(wrong)
    end
    return config.mode == "enforce"
end

local DAEMON_DOWN = {
    code = "SW-DAEMON-DOWN",
    message = "The slicewise daemon does not answer, and a service can't run without it.",
    hint = "Nothing was submitted. Try again in a minute; if it lasts, tell the cluster's "
        .. "operator.",
}

local UNTYPED = {
    code = "SW-DAEMON-DOWN",
    message = "The slicewise daemon does not answer, and Slurm alone can only limit typed GPUs.",
    hint = "Write --gres=gpu:TYPE:N, or try again in a minute.",
}

local HELD = {
    message = "The slicewise daemon does not answer: the job is held, and goes on by itself once "
        .. "the daemon has decided on it (slicewise why JOB). [SW-DAEMON-DOWN]",
}

-- The tenant that would be charged; nil if none could be.
local function tenant_of(question)
    local tenant = (question.account or question.default_account or ""):lower()
    return question.token and tenant:find("^[a-z0-9_.-]+$") and tenant or nil
end

-- Puts a job into its tenant's own QOS, or the borrowed one if it names that. In another QOS, which
-- a user may name or make the default, the job would not count as guaranteed, and could not be
-- preempted as borrowed.
local function put_in_own_qos(job_desc, tenant)
    if has_own_qos[tenant] then
        local own, asked = OWN_QOS .. tenant, (text(job_desc.qos) or ""):lower()
        job_desc.qos = asked == own .. BORROWED and asked or own
    end
end

-- Lets a job be decided later. The limits compiled into Slurm hold for a job with typed GPUs. Slurm
-- counts a request by type, so a job with untyped GPUs would start above every limit: it is held.
local function decide_later(job_desc, job)
    local tenant = tenant_of(job.question)
    if not tenant then
        return job.must_wait and refuse(UNTYPED) or slurm.SUCCESS
    end
    put_in_own_qos(job_desc, tenant)
    -- The daemon finds the job by this tag when it is back.
    local tag = change.TAG .. job.question.token .. " tenant=" .. tenant .. " undecided"
    if job.must_wait and request.drop_auto(job_desc) then
        tag = tag .. " auto"
    end
    add_tag(job_desc, tag)
    if job.must_wait then
        job_desc.priority = 0
        notify(job_desc, HELD, "message")
        mend_steps(job)
    end
    return slurm.SUCCESS
end

-- An error came before the job was checked: a request that no limit of Slurm's counts is refused.
local function unweighed(job_desc, job)
    local gpus = request.gpus_among(request.gres_of(job_desc))
    local is_open = gpus == "open" or not gpus and config.without_gpu == "refuse"
    local concerns_us = is_managed(request.partition_of(job_desc, job.part_list))
    return is_open and concerns_us and refuse(UNTYPED) or slurm.SUCCESS
end

local function unanswered(job_desc, job, problem)
    if problem then
        slurm.log_info("slicewise: no answer from %s: %s", config.socket, problem)
    end
    if config.mode ~= "enforce" then
        return slurm.SUCCESS
    elseif job.is_service then
        return refuse(DAEMON_DOWN)
    elseif not job.is_weighed then
        return unweighed(job_desc, job)
    elseif job.wrong then
        return refuse(job.wrong)
    elseif job.has_gpus then
        return decide_later(job_desc, job)
    end
    return slurm.SUCCESS
end

-- What the daemon decided: one that only observes answers "pass", and tag or code say what it would
-- have done.
local function verdict(answer)
    if answer.action ~= "pass" then
        return answer.action
    end
    return text(answer.code) and "refuse" or text(answer.tag) and "admit" or "pass"
end

local function obey(job_desc, job, answer)
    if config.mode == "observe" then
        slurm.log_info("slicewise: observe: would %s %s", verdict(answer),
            tostring(text(answer.code) or text(answer.tag) or ""))
        return slurm.SUCCESS
    end
    if answer.code == "SW-QUOTA-NONE" then
        -- It is no tenant any more: its QOS, if it still exists, takes none of its jobs.
        has_own_qos[tenant_of(job.question) or ""] = nil
    end
    if answer.action == "refuse" and config.mode == "enforce" then
        return refuse(answer)
    elseif job.wrong and answer.action == "pass" and is_refused_by_rule(job.wrong, job_desc) then
        return refuse(job.wrong)
    elseif answer.action == "refuse" then
        advise(answer)
    elseif answer.action == "admit" then
        admit(job_desc, job, answer)
    end
    notify(job_desc, answer, "notice", job.question.explain and "decision" or nil)
    return slurm.SUCCESS
end

-- Refuses a job with a text longer than any rule reads, with GPUs or without.
local function refuse_oversized(field)
    slurm.log_info("slicewise: SW-JOB-OPTION: %s is longer than %d bytes", field,
        request.TEXT_BYTES)
    if config.mode ~= "enforce" then
        return slurm.SUCCESS
    end
    return refuse({
        code = "SW-JOB-OPTION",
        message = ("The job's %s has more than %d bytes."):format(field, request.TEXT_BYTES),
        hint = "Write it in fewer.",
    })
end

-- Moves a job without GPUs from an own QOS to the borrowed one: it would otherwise preempt jobs on
-- borrowed quota just for CPUs. Root's jobs may stay.
local function give_way(job_desc)
    local qos = (text(job_desc.qos) or text(job_desc.default_qos) or ""):lower()
    local may_stay = config.mode ~= "enforce" or job_desc.user_id == 0 or not is_own_qos(qos)
    if not may_stay and not is_off() then
        job_desc.qos = qos .. BORROWED
        notify(job_desc, {
            message = ("The job shares nodes with GPUs: in QOS %s it gives way to jobs that need "
                .. "them."):format(job_desc.qos),
        }, "message")
    end
end

-- Decides a submission. Fills `job` with what must be known of it if something goes wrong.
local function submit(job, job_desc, submit_uid)
    local script = text(job_desc.script)
    local directives = request.directives_of(script or "")
    job.is_service = request.says(directives, "name") ~= nil
    job.profile = job.is_service and request.says(directives, "profile") or nil
    job.gpus = job.is_service and tonumber(request.says(directives, "gpus")) or 1
    local long = request.oversized(job_desc)
    if long then
        local concerns_us = #directives > 0 or long == "partition"
            or is_managed(request.partition_of(job_desc, job.part_list))
        return concerns_us and not is_off() and refuse_oversized(long) or slurm.SUCCESS
    end
    local question = request.question_of(job_desc, job.part_list, submit_uid)
    local gpus = request.gpus_among(request.gres_of(question))
    local needs = request.says(directives, "need") ~= nil
    job.question = question
    local is_here = is_managed(question.partition)
    job.asks_for_gpus = gpus ~= nil or question.exclusive or needs
    job.has_gpus = job.asks_for_gpus and is_here
    job.must_wait = gpus == "open" or needs
    -- Only Slurm knows which partition a reservation brings.
    local is_named = text(job_desc.partition) or not text(job_desc.reservation)
    local beside = is_named and beside_among(question.partition)
    local wrong = beside and bounds.objection_beside(job_desc, beside, job, config.partitions)
        or is_here and bounds.objection(job_desc, question, job, config)
    job.is_weighed = true
    local has_none = is_here and not (job.has_gpus or job.is_service)
    if (beside or has_none) and not wrong then
        give_way(job_desc)
    end
    if (#directives == 0 and not job.has_gpus and not wrong) or is_off() then
        return slurm.SUCCESS
    elseif wrong and #directives > 0 and not (job.has_gpus or job.is_service) then
        -- The daemon knows better what is wrong with its directives.
        job.wrong = wrong
    elseif wrong and is_refused_by_rule(wrong, job_desc) then
        return refuse(wrong)
    elseif #directives == 0 and not job.has_gpus then
        return slurm.SUCCESS
    end
    if is_here and config.mode ~= "observe" then
        bounds.add_memory(job_desc, question, job, config, job.part_list)
    end
    job.environment = script and (job_desc.environment or {})
    request.add_script(question, job_desc, job.environment, directives)
    question.token, question.module, question.mode = new_token(), M.VERSION, config.mode
    local answer, problem = line.ask(question, config.socket, config.timeout_s)
    if not answer then
        return unanswered(job_desc, job, problem)
    end
    return obey(job_desc, job, answer)
end

--- What slurm_job_submit shall return; sets fields of job_desc. Never raises.
function M.job_submit(job_desc, part_list, submit_uid)
    local job = { part_list = part_list }
    local worked, result = pcall(submit, job, job_desc, submit_uid)
    if worked then
        return result
    end
    local problem = tostring(result)
    worked, result = pcall(function()
        return is_off() and slurm.SUCCESS or unanswered(job_desc, job, problem)
    end)
    return worked and result or slurm.SUCCESS
end

local function judge_change(job_desc, job_rec, modify_uid)
    local wrong = change.objection(job_desc, job_rec, is_managed, beside_among, config)
    if not wrong or is_off() then
        return slurm.SUCCESS
    end
    slurm.log_info("slicewise: %s: uid %s may not change %s of job %s", wrong.code,
        request.digits(modify_uid), wrong.field, request.digits(job_rec.job_id))
    if config.mode ~= "enforce" then
        return slurm.SUCCESS
    end
    if tells_in_modify() then
        tell(wrong, "message", "hint", "code")
    end
    return DENIED
end

--- What slurm_job_modify shall return. The daemon is not asked, since slurmctld holds its write
-- locks here. In mode enforce a change that can't be judged is refused; root and SlurmUser may
-- change everything.
function M.job_modify(job_desc, job_rec, _, modify_uid)
    if modify_uid == 0 or modify_uid == config.slurm_uid then
        return slurm.SUCCESS
    end
    local worked, result = pcall(judge_change, job_desc, job_rec, modify_uid)
    if worked then
        return result
    end
    slurm.log_info("slicewise: job_modify: %s", tostring(result))
    return config.mode == "enforce" and not is_off() and DENIED or slurm.SUCCESS
end

return M
