-- slicewise.lua: what slurmctld does with a job that asks for GPUs.
--
-- A site's own job_submit.lua loads this file with `dofile` in protected lines, as
-- etc/job_submit.lua shows; it never replaces that file. Lua 5.1, with lua-socket and lua-cjson.
--
-- job_submit asks the daemon on its admission socket and obeys the answer. It never waits longer
-- than `timeout_s` in all, since slurmctld stands still meanwhile. job_modify decides alone.
-- `job_desc.assoc_qos` is never read: that crashes slurmctld 24.11.

local cjson = require "cjson"
local socket = require "socket"
local unix = require "socket.unix"

local M = {}

local PROTOCOL = 1
local DIRECTIVE = "#SLICEWISE"
local HEAD_BYTES = 65536
local HEAD_DIRECTIVES = 64
local DIRECTIVE_BYTES = 2048
local TAG = "slicewise:1 token="
-- Slurm's own words for a 32-bit number: INFINITE is what `scontrol release` sends as priority.
local NO_VAL = 4294967294
local INFINITE = 4294967295
local NO_VAL16 = 65534
-- Slurm prints an error code's own text after our lines, so it must fit.
local DENIED = slurm.ESLURM_ACCESS_DENIED or 2002
local POLICY = slurm.ESLURM_ACCOUNTING_POLICY or 2050

local config = {
    socket = "/run/slicewise/admission/admission.sock",
    mode = "enforce",
    timeout_s = 0.010,
}
local MODES = { observe = true, advise = true, enforce = true }

-- slurmctld runs as SlurmUser, so its own uid is SlurmUser's.
local function own_uid()
    local file = io.open("/proc/self/status", "r")
    if not file then
        return nil
    end
    local status = file:read("*a")
    file:close()
    return tonumber(status:match("\nUid:%s*%d+%s+(%d+)"))
end

local KEYS = { socket = true, mode = true, timeout_s = true, partitions = true, slurm_uid = true }

--- Set `socket` (path), `mode` (observe, advise, enforce), `timeout_s` (of one whole question),
-- `partitions` (list of the managed ones; unset: every one is asked about) and, only where /proc
-- can't say it, `slurm_uid`. Raises an error for anything else.
function M.configure(options)
    for key, value in pairs(options) do
        if not KEYS[key] then
            error("slicewise: configure knows no key " .. tostring(key), 2)
        end
        config[key] = value
    end
    if not MODES[config.mode] then
        error("slicewise: mode must be observe, advise or enforce, not " .. tostring(config.mode), 2)
    end
    if type(config.timeout_s) ~= "number" or config.timeout_s <= 0 or config.timeout_s > 1 then
        error("slicewise: timeout_s must be above 0 and at most 1", 2)
    end
    config.slurm_uid = config.slurm_uid or own_uid()
end

local function text(value)
    if type(value) == "string" and value ~= "" then
        return value
    end
    return nil
end

-- Users write the texts below, and slurmctld stands still while they are read: every pattern must
-- take time in proportion to the text. "^%s*(.-)%s*$" does not.

local function stripped(line)
    local first = line:find("%S")
    return first and line:sub(first):match("^.*%S") or ""
end

-- The #SLICEWISE lines before the script's first command, without blanks around them, as
-- cluster/service.py reads them. Of one that is too long so much that the daemon refuses it.
local function directives_of(script)
    local found = {}
    for line in (script:sub(1, HEAD_BYTES) .. "\n"):gmatch("([^\n]*)\n") do
        local said = stripped(line)
        if (said ~= "" and said:sub(1, 1) ~= "#") or #found == HEAD_DIRECTIVES then
            break
        end
        if said:sub(1, #DIRECTIVE) == DIRECTIVE then
            found[#found + 1] = said:sub(1, DIRECTIVE_BYTES + 1)
        end
    end
    return found
end

local function default_partition(part_list)
    for name, partition in pairs(part_list or {}) do
        if partition.flag_default == 1 then
            return name
        end
    end
    return nil
end

local REQUEST_FIELDS = { "tres_per_job", "tres_per_socket", "tres_per_task" }

-- All GRES that a submission or a change asks for, or that a job has.
local function gres_of(job)
    local asked = { text(job.tres_per_node) or text(job.gres) or "" }
    for _, field in ipairs(REQUEST_FIELDS) do
        asked[#asked + 1] = text(job[field])
    end
    return table.concat(asked, ",")
end

-- As --gres=gpu:TYPE:N, and nothing else: what Slurm reads otherwise ("gpu:+1", "gpu:1k") is a
-- number of any GPUs. As in cluster/gres.py.
local function is_typed(gpu)
    local kind, count = gpu:match("^gpu:(%w[%w_.+-]*)(.*)$")
    if not kind or not kind:find("%a") then
        return false
    end
    if count == "" then
        return not kind:find("^%d+[kmgtpKMGTP]$")
    end
    return count:find("^[:=]%d+$") ~= nil and #count < 10
end

-- Is any of the GPUs among these GRES of no type? nil if there is no GPU.
local function has_untyped_gpu(asked)
    local untyped = nil
    for part in asked:gmatch("[^,]+") do
        local gpu = stripped(part):gsub("^gres[:/]", "")
        if gpu:match("^[^:=]*") == "gpu" then
            untyped = untyped or not is_typed(gpu)
        end
    end
    return untyped
end

-- `--ntasks-per-gpu` without GPUs: Slurm adds as many of no type as the tasks need.
local function implies_gpus(job_desc)
    local tasks = job_desc.ntasks_per_tres
    return type(tasks) == "number" and tasks < NO_VAL16 and has_untyped_gpu(gres_of(job_desc)) == nil
end

local function question_of(job_desc, part_list, submit_uid)
    local question = {
        v = PROTOCOL,
        op = "submit",
        uid = submit_uid,
        account = text(job_desc.account),
        partition = text(job_desc.partition) or default_partition(part_list),
        qos = text(job_desc.qos),
        name = text(job_desc.name),
        gres = text(job_desc.tres_per_node) or text(job_desc.gres),
        array = text(job_desc.array_inx),
    }
    for _, field in ipairs(REQUEST_FIELDS) do
        question[field] = text(job_desc[field])
    end
    if implies_gpus(job_desc) then
        question.tres_per_job = (question.tres_per_job or "") .. ",gpu"
    end
    if not question.account then
        question.default_account = text(job_desc.default_account)
    end
    local time_limit = job_desc.time_limit
    if type(time_limit) == "number" and time_limit < NO_VAL then
        question.time_limit_min = time_limit
    end
    return question
end

-- A job may name several partitions; one of none may run in any.
local function is_managed(partition)
    for _, managed in ipairs(config.partitions or {}) do
        if ("," .. (partition or managed) .. ","):find("," .. managed .. ",", 1, true) then
            return true
        end
    end
    return config.partitions == nil
end

-- The socket's own timeout is per operation; the budget is for the whole question.
local function exchange(connection, line)
    local deadline = socket.gettime() + config.timeout_s
    local function budget()
        connection:settimeout(math.max(deadline - socket.gettime(), 0.00001), "t")
    end
    budget()
    local worked, problem = connection:connect(config.socket)
    if worked then
        budget()
        worked, problem = connection:send(line)
    end
    if not worked then
        return nil, problem
    end
    budget()
    return connection:receive("*l")
end

local ACTIONS = { pass = true, admit = true, refuse = true }

local function ask(question)
    local connection = unix.stream()
    local line, problem = exchange(connection, cjson.encode(question) .. "\n")
    connection:close()
    if not line then
        return nil, tostring(problem)
    end
    local readable, answer = pcall(cjson.decode, line)
    if not readable or type(answer) ~= "table" or not ACTIONS[answer.action] then
        return nil, "an answer that can't be read"
    end
    return answer
end

local function admit(job_desc, answer)
    if text(answer.gres) then
        job_desc.gres = answer.gres
    end
    if text(answer.qos) then
        job_desc.qos = answer.qos
    end
    if type(answer.site_factor) == "number" then
        job_desc.site_factor = answer.site_factor
    end
    if text(answer.tag) then
        local before = text(job_desc.admin_comment)
        job_desc.admin_comment = before and (before .. " " .. answer.tag) or answer.tag
    end
    if answer.hold == true then
        job_desc.priority = 0
    end
end

-- Before all error codes were there (22.05 has eight), slurmctld logs an error for each log_user
-- in job_modify and shows the user nothing.
local function tells_in_modify()
    return slurm.ESLURM_INVALID_QOS ~= nil
end

local function tell(answer)
    for _, key in ipairs({ "message", "hint", "code" }) do
        if text(answer[key]) then
            slurm.log_user("%s", answer[key])
        end
    end
end

local function refuse(answer)
    tell(answer)
    if tostring(answer.code):sub(1, 9) == "SW-QUOTA-" then
        return POLICY
    end
    return DENIED
end

local DAEMON_DOWN = {
    code = "SW-DAEMON-DOWN",
    message = "The slicewise daemon does not answer, and a service can't run without it.",
    hint = "Nothing was submitted. Try again in a minute; if it lasts, tell the cluster's operator.",
}

local UNTYPED = {
    code = "SW-DAEMON-DOWN",
    message = "The slicewise daemon does not answer, and Slurm alone can only limit typed GPUs.",
    hint = "Write --gres=gpu:TYPE:N, or try again in a minute.",
}

-- Other jobs go on: the limits that are compiled into Slurm hold for them. Slurm weighs a request
-- by type, so one without a type would start above every limit.
local function unanswered(job, problem)
    slurm.log_info("slicewise: no answer from %s: %s", config.socket, problem)
    if config.mode ~= "enforce" then
        return slurm.SUCCESS
    elseif job.is_service then
        return refuse(DAEMON_DOWN)
    elseif job.is_untyped then
        return refuse(UNTYPED)
    end
    return slurm.SUCCESS
end

-- A daemon that only observes lets all pass; tag or code say what it would have done.
local function verdict(answer)
    if answer.action ~= "pass" then
        return answer.action
    end
    return text(answer.code) and "refuse" or text(answer.tag) and "admit" or "pass"
end

local function obey(job_desc, answer)
    if config.mode == "observe" then
        slurm.log_info("slicewise: observe: would %s %s", verdict(answer),
            tostring(text(answer.code) or text(answer.tag) or ""))
    elseif answer.action == "admit" then
        admit(job_desc, answer)
    elseif answer.action == "refuse" and config.mode == "advise" then
        tell(answer)
    elseif answer.action == "refuse" then
        return refuse(answer)
    end
    return slurm.SUCCESS
end

--- What slurm_job_submit shall return; sets fields of job_desc. Never raises.
function M.job_submit(job_desc, part_list, submit_uid)
    local job = {}
    local worked, result = pcall(function()
        local directives = directives_of(text(job_desc.script) or "")
        job.is_service = #directives > 0
        local question = question_of(job_desc, part_list, submit_uid)
        job.is_untyped = has_untyped_gpu(gres_of(question))
        local asks_for_gpu = job.is_untyped ~= nil and is_managed(question.partition)
        if not job.is_service and not asks_for_gpu then
            return slurm.SUCCESS
        end
        -- An empty Lua table would be encoded as an object, not as a list.
        question.directives = job.is_service and directives or nil
        local answer, problem = ask(question)
        if not answer then
            return unanswered(job, problem)
        end
        return obey(job_desc, answer)
    end)
    if worked then
        return result
    end
    return unanswered(job, tostring(result))
end

local OWNERS_MAY_NOT_CHANGE = {
    "qos", "account", "partition", "gres", "tres_per_node", "tres_per_job", "tres_per_socket",
    "tres_per_task", "array_inx", "admin_comment",
}

-- The first thing in the change that is not the owner's to do; nil if there is none. Releasing a
-- job that its owner held is fine, releasing a service's slot is not.
local function forbidden_change(job_desc, is_service)
    for _, field in ipairs(OWNERS_MAY_NOT_CHANGE) do
        if job_desc[field] ~= nil then
            return field
        end
    end
    local priority = job_desc.priority
    local harmless = priority == nil or priority == NO_VAL or priority == 0
        or (priority == INFINITE and not is_service)
    return not harmless and "priority" or nil
end

-- The field by which a job that nobody admitted would get GPUs of a managed partition; nil if none.
-- Only tres_fmt_req_str tells of the GPUs of --ntasks-per-gpu.
local function smuggling_change(job_desc, job_rec)
    local partition = text(job_desc.partition)
    if not is_managed(partition or text(job_rec.partition)) then
        return nil
    end
    if has_untyped_gpu(gres_of(job_desc)) ~= nil or implies_gpus(job_desc) then
        return "gres"
    end
    local has = gres_of(job_rec) .. "," .. (text(job_rec.tres_fmt_req_str) or "")
    return partition and has_untyped_gpu(has) ~= nil and "partition" or nil
end

-- What is wrong with a change (field, code, message, hint); nil if nothing is.
local function objection(job_desc, job_rec)
    local comment = text(job_rec.admin_comment) or ""
    local tag_start = comment:find(TAG, 1, true)
    if not tag_start then
        local field = smuggling_change(job_desc, job_rec)
        return field and {
            field = field,
            code = "SW-NOT-ADMITTED",
            message = "This job was not admitted to GPUs: its " .. field .. " can't bring it any.",
            hint = "Cancel it and submit it anew, with the GPUs and the partition that it needs.",
        }
    end
    local field = forbidden_change(job_desc, comment:find(" service=", tag_start, true) ~= nil)
    return field and {
        field = field,
        code = "SW-MANAGED-JOB",
        message = "Slicewise manages this job: its " .. field .. " is not its owner's to change.",
        hint = "Cancel it and submit it anew, or ask for slots by way of its service.",
    }
end

local function judge_change(job_desc, job_rec, modify_uid)
    local wrong = objection(job_desc, job_rec)
    if not wrong then
        return slurm.SUCCESS
    end
    slurm.log_info("slicewise: %s: uid %s may not change %s of job %s", wrong.code,
        tostring(modify_uid), wrong.field, tostring(job_rec.job_id))
    if config.mode ~= "enforce" then
        return slurm.SUCCESS
    end
    if tells_in_modify() then
        tell(wrong)
    end
    return DENIED
end

--- What slurm_job_modify shall return. Asks nobody: slurmctld holds its write locks here. A change
-- that can't be judged is refused, in mode enforce; root and SlurmUser are never asked.
function M.job_modify(job_desc, job_rec, _, modify_uid)
    if modify_uid == 0 or modify_uid == config.slurm_uid then
        return slurm.SUCCESS
    end
    local worked, result = pcall(judge_change, job_desc, job_rec, modify_uid)
    if worked then
        return result
    end
    slurm.log_info("slicewise: job_modify: %s", tostring(result))
    return config.mode == "enforce" and DENIED or slurm.SUCCESS
end

return M
