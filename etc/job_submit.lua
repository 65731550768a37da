-- What `slicewise admission install` proposes, but for the paths and partitions of your site, and
-- what its nodes have for each GPU (shares). Better let it propose: it tries the whole first.
--
-- Check before slurmctld is restarted (a broken script prevents its start), with its own Lua:
--   luac5.1 -p /etc/slurm/job_submit.lua

-- Called by slurmctld for each job; read again whenever this file is changed. Both functions must
-- be there, else slurmctld does not start: they stay if slicewise's lines go.
function slurm_job_submit(job_desc, part_list, submit_uid)
    return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    return slurm.SUCCESS
end

-- slicewise begin: as `slicewise admission install` proposes; if anything fails in here,
-- slurmctld goes on: jobs are submitted as before, and the limits compiled into Slurm hold.
do
    local options = {
        socket = "/run/slicewise/admission/admission.sock",
        -- observe, then advise (sets fields, refuses nothing), then enforce; each time after the
        -- daemon's own mode in slicewise.toml.
        mode = "observe",
        timeout_s = 0.010, -- slurmctld waits for the daemon no longer than this
        -- As in slicewise.toml; the daemon is not asked about jobs in other partitions.
        partitions = { "gpu" },
        -- What to do with jobs in managed partitions that ask for no GPU: refuse, allow.
        without_gpu = "refuse",
        -- Whether users of accepted jobs are told what they might not expect: asked, always.
        notices = "asked",
        off_file = "/etc/slicewise/off", -- while this file exists, slicewise does nothing
    }
    local loaded, slicewise = pcall(dofile, "/opt/slicewise/share/slicewise/lua/slicewise.lua")
    if loaded then
        loaded, slicewise = pcall(function(module)
            module.configure(options)
            return module
        end, slicewise)
    end
    if not loaded then
        slurm.log_error("slicewise is off: %s", tostring(slicewise))
    end

    -- From here to ask_slicewise: used while slicewise.lua can't be loaded. In mode enforce, jobs
    -- that Slurm's limits do not hold are then refused.
    local GRES = { "gres", "tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task" }
    -- Fields of a change that only slicewise.lua can check: texts, and numbers, each with Slurm's
    -- value for "not set".
    local TEXTS = {
        "partition", "reservation", "qos", "account", "cpus_per_tres", "mem_per_tres",
    }
    local NO_VAL, NO_VAL16 = 4294967294, 65534
    local NUMBERS = {
        priority = NO_VAL, num_tasks = NO_VAL, min_nodes = NO_VAL, max_nodes = NO_VAL,
        min_cpus = NO_VAL, ntasks_per_node = NO_VAL16, ntasks_per_socket = NO_VAL16,
        ntasks_per_tres = NO_VAL16, cpus_per_task = NO_VAL16, shared = NO_VAL16, end_time = 0,
    }

    local function are_among(names, partitions)
        for _, name in ipairs(partitions or {}) do
            if ("," .. names .. ","):find("," .. name .. ",", 1, true) then
                return true
            end
        end
        return false
    end

    -- Nil if the job's reservation decides that.
    local function partitions_of(job_desc, part_list)
        local named = job_desc.partition
        for name, partition in pairs(part_list) do
            if not named and not job_desc.reservation and partition.flag_default == 1 then
                named = name
            end
        end
        return named
    end

    -- Slurm's limits count only GPUs that have a type, as in gpu:3g.40gb:1, and no pads.
    local function is_counted(gpu)
        local kind, count = gpu:match("gpu:([%w_.+-]+)[:=](%d+)$")
        local has_type = kind ~= nil and kind ~= "auto" and kind:find("%a") ~= nil
        return has_type and not kind:find("^pad%d+$") and tonumber(count) > 0
    end

    -- GPUs that limits count, one for each name of a type; nil if there are others.
    local function count_gpus(job_desc)
        local gpus = 0
        for _, field in ipairs(GRES) do
            local asked = job_desc[field] or ""
            -- Slurm refuses longer ones, but only after this: they would take long to read.
            for part in asked:sub(1, 1025):gmatch("[^,]+") do
                local is_gpu = part:find("gpu") or part:find("shard") or part:find("mps")
                if #asked > 1024 or (is_gpu and not is_counted(part)) then
                    return nil
                end
                gpus = gpus + (is_gpu and 1 or 0)
            end
        end
        return gpus
    end

    local function is_above_limits(job_desc, gpus, is_beside)
        local per_gpu, shared = job_desc.ntasks_per_tres or 0, job_desc.shared or NO_VAL16
        -- 0 is a whole node, and Slurm counts all its GPUs; above 1 the node is kept for one user.
        local is_free = gpus == 0 and shared ~= 0 and options.without_gpu == "refuse"
        local keeps_nodes = shared > 1 and shared < NO_VAL16
        local is_untyped = gpus == 0 and per_gpu > 0 and per_gpu < NO_VAL16
        if is_beside then
            return gpus > 0 or shared == 0 or keeps_nodes or is_untyped
        end
        return is_free or keeps_nodes or is_untyped
    end

    local function is_unweighed(job_desc)
        for _, fields in ipairs({ GRES, TEXTS }) do
            for _, field in ipairs(fields) do
                if job_desc[field] ~= nil then
                    return true
                end
            end
        end
        for field, unset in pairs(NUMBERS) do
            local is_hold = field == "priority" and job_desc[field] == 0
            if type(job_desc[field]) == "number" and job_desc[field] ~= unset and not is_hold then
                return true
            end
        end
        return false
    end

    local function is_off()
        local file = io.open(options.off_file, "r")
        return file ~= nil and file:close()
    end

    -- Root, and SlurmUser, the user that runs slurmctld.
    local function is_trusted(uid)
        local file = uid ~= 0 and io.open("/proc/self/status", "r")
        local status = file and file:read("*a") or ""
        if file then
            file:close()
        end
        return uid == 0 or uid == tonumber(status:match("\nUid:%s*%d+%s+(%d+)"))
    end

    local DENIED = slurm.ESLURM_ACCESS_DENIED or 2002
    local TELL_OPERATOR = "Tell the cluster's operator. [SW-DAEMON-DOWN]"
    local alone = {}

    function alone.job_submit(job_desc, part_list)
        local named = partitions_of(job_desc, part_list)
        local is_beside = named and are_among(named, options.beside)
        local concerns_us = is_beside or not named or are_among(named, options.partitions)
        local is_ours = options.mode == "enforce" and job_desc.user_id ~= 0 and concerns_us
            and not is_off()
        local gpus = count_gpus(job_desc)
        local is_refused = is_ours and (not gpus or is_above_limits(job_desc, gpus, is_beside))
        local qos = (job_desc.qos or job_desc.default_qos or ""):lower()
        local is_own = qos:find("slicewise_", 1, true) == 1 and not qos:find("_borrowed$")
        if is_ours and is_own and (is_beside or (gpus == 0 and job_desc.shared ~= 0)) then
            -- In its tenant's own QOS it would preempt borrowed GPUs, for CPUs.
            job_desc.qos = qos .. "_borrowed"
        end
        if is_refused then
            slurm.log_user("slicewise.lua can't be loaded: for now, only ask for GPUs with a type, "
                .. "as --gres=gpu:TYPE:N. " .. TELL_OPERATOR)
        end
        return is_refused and DENIED or slurm.SUCCESS
    end

    function alone.job_modify(job_desc, job_rec, _, modify_uid)
        local names = (job_rec.partition or "") .. "," .. (job_desc.partition or "")
        local concerns_us = job_desc.reservation or are_among(names, options.partitions)
            or are_among(names, options.beside)
        local is_refused = options.mode == "enforce" and concerns_us and not is_trusted(modify_uid)
            and is_unweighed(job_desc) and not is_off()
        -- In older versions of Slurm users would not see it, and slurmctld would log an error.
        if is_refused and slurm.ESLURM_INVALID_QOS then
            slurm.log_user("slicewise.lua can't be loaded: this change of a job can't be checked "
                .. "now. " .. TELL_OPERATOR)
        end
        return is_refused and DENIED or slurm.SUCCESS
    end

    if not loaded then
        slicewise = alone
    end

    local function ask_slicewise(name, ...)
        local worked, code = pcall(slicewise[name], ...)
        if worked then
            return code
        end
        slurm.log_error("slicewise: %s: %s", name, tostring(code))
        return slurm.SUCCESS
    end

    -- The site's own function comes first; the daemon is not asked about jobs that it refuses.
    local function after(site_function, name)
        return function(...)
            local code = site_function and site_function(...)
            if type(code) == "number" and code ~= slurm.SUCCESS then
                return code
            end
            return ask_slicewise(name, ...)
        end
    end

    slurm_job_submit = after(slurm_job_submit, "job_submit")
    slurm_job_modify = after(slurm_job_modify, "job_modify")
end
-- slicewise end

return slurm.SUCCESS
