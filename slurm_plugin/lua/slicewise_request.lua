-- slicewise_request.lua: reads what Slurm shows of a job at its submission or a change.
-- slicewise.lua loads this file from its own directory. The texts differ by Slurm's version.

local M = {}

local PROTOCOL = 1
local DIRECTIVE = "#SLICEWISE"
local HEAD_BYTES = 65536
local HEAD_DIRECTIVES = 64
local DIRECTIVE_BYTES = 2048
-- Slurm's values for a number that is not set, of 32 and of 16 bits; INFINITE is what `scontrol
-- release` sends as priority. Texts longer than TEXT_BYTES are refused, or cut.
M.NO_VAL, M.NO_VAL16, M.INFINITE = 4294967294, 65534, 4294967295
M.TEXT_BYTES = 1024
local NO_VAL, NO_VAL16 = M.NO_VAL, M.NO_VAL16

--- A text; nil if the value is no text or empty.
function M.text(value)
    if type(value) == "string" and value ~= "" then
        return value
    end
    return nil
end

--- A number; nil if it has the value for unset.
function M.number(value, unset)
    return type(value) == "number" and value < unset and value or nil
end

--- A number as its digits, without the ".0" that newer Lua adds to numbers from slurmctld.
function M.digits(value)
    return type(value) == "number" and ("%.0f"):format(value) or tostring(value)
end

local text, number = M.text, M.number

-- Users write the texts below, and slurmctld stands still while they are read, so every pattern
-- must take time in proportion to the text. "^%s*(.-)%s*$" does not.

local function stripped(part)
    local first = part:find("%S")
    return first and part:sub(first):match("^.*%S") or ""
end

--- The #SLICEWISE lines before the script's first command, without blanks around them, as
-- cluster/language/service.py reads them. A line that is too long is cut to a length that the daemon
-- refuses.
function M.directives_of(script)
    local found = {}
    local head = "\n" .. script:sub(1, HEAD_BYTES)
    if not head:find(DIRECTIVE, 1, true) then
        return found
    end
    head = head:sub(1, head:find("\n[ \t\v\f\r]*[^#%s]"))
    for said in head:gmatch("\n[ \t\v\f\r]*(" .. DIRECTIVE .. "[^\n]*)") do
        if #found == HEAD_DIRECTIVES then
            break
        end
        found[#found + 1] = stripped(said):sub(1, DIRECTIVE_BYTES + 1)
    end
    return found
end

--- The value of the first directive with this key; nil if none has it. A directive that sets a name
-- makes a service.
function M.says(directives, key)
    for _, said in ipairs(directives) do
        local value = said:match("^" .. DIRECTIVE .. "[ \t]+" .. key .. "=(.*)")
        if value then
            return value
        end
    end
    return nil
end

local function default_partition(part_list)
    for name, partition in pairs(part_list or {}) do
        if partition.flag_default == 1 then
            return name
        end
    end
    return nil
end

local function all_partitions(part_list)
    local names = {}
    for name in pairs(part_list or {}) do
        names[#names + 1] = name
    end
    table.sort(names)
    return text(table.concat(names, ","))
end

--- Partitions in which a job may run: those that it names, else Slurm's default. A job that names a
-- reservation and no partition gets the reservation's partition, if that has one: it may be any.
-- (`slurm.reservations` can point to a reservation that is gone, so it is not read.)
function M.partition_of(job_desc, part_list)
    return text(job_desc.partition)
        or (text(job_desc.reservation) and all_partitions or default_partition)(part_list)
end

M.REQUEST_FIELDS = { "tres_per_job", "tres_per_socket", "tres_per_task" }

--- These fields and REQUEST_FIELDS in one list. (`unpack` has another name after Lua 5.1.)
function M.with_request_fields(...)
    local fields = { ... }
    for _, field in ipairs(M.REQUEST_FIELDS) do
        fields[#fields + 1] = field
    end
    return fields
end

--- All GRES that a submission or a change asks for, or that a job has.
function M.gres_of(job)
    local asked = { text(job.tres_per_node) or text(job.gres) or "" }
    for _, field in ipairs(M.REQUEST_FIELDS) do
        asked[#asked + 1] = text(job[field])
    end
    return table.concat(asked, ",")
end

local function without_auto(asked)
    return asked:gsub("%f[%w]gpu:auto%f[^%w_.+-]", "gpu")
end

--- Take "auto" out of a job's GRES; return whether there was any. Slurm gives a waiting job no
-- other type than the one with which it was submitted, only one where there was none.
function M.drop_auto(job_desc)
    local asked = text(job_desc.tres_per_node) or text(job_desc.gres) or ""
    local per_node, dropped = without_auto(asked)
    if dropped > 0 then
        job_desc.gres = ("," .. per_node):gsub(",gres[:/]", ","):sub(2)
    end
    for _, field in ipairs(M.REQUEST_FIELDS) do
        local plain, count = without_auto(text(job_desc[field]) or "")
        if count > 0 then
            job_desc[field] = plain
        end
        dropped = dropped + count
    end
    return dropped > 0
end

-- Whether a GRES has the form gpu:TYPE or gpu:TYPE:N of --gres: what Slurm reads otherwise
-- ("gpu:+1", "gpu:1k") is a number of any GPUs; "gpu:auto" leaves the type to the daemon. As in
-- cluster/language/gres.py. A pad, such as "gpu:pad4", stands for the part of a GPU that is not cut, and no
-- limit counts it.
local function is_typed(gpu)
    local kind, count = gpu:match("^gpu:(%w[%w_.+-]*)(.*)$")
    if not kind or kind == "auto" or not kind:find("%a") or kind:find("^pad%d+$") then
        return false
    end
    if count == "" then
        return not kind:find("^%d+[kmgtpKMGTP]$")
    end
    return count:find("^[:=]%d+$") ~= nil and #count < 10
end

-- A GRES without its "gres:" or "gres/", and how many of these prefixes it had: Slurm takes one.
local function unprefixed(gres)
    local prefixes = 0
    while gres:find("^gres[:/]") do
        gres, prefixes = gres:sub(6), prefixes + 1
    end
    return gres, prefixes
end

local GPU_NAMES = { gpu = true, shard = true, mps = true }

--- The GPUs of a text in order: each one's `kind`, nil if it has no type, and `count`. Parts of
-- shared GPUs have their GRES as kind: "shard", "mps".
function M.gpus_of(asked)
    local found = {}
    for part in asked:gmatch("[^,]+") do
        local gres = unprefixed(stripped(part))
        if GPU_NAMES[gres:match("^[^:=]*")] then
            local shared = gres:match("^[^:=]*")
            local kind = is_typed(gres) and gres:match("^gpu:([^:=]*)")
                or shared ~= "gpu" and shared or nil
            local count = tonumber(gres:match("[:=](%d+)$") or 1)
            found[#found + 1] = { kind = kind, count = count }
        end
    end
    return found
end

--- "typed" if each GPU among these GRES has a type that Slurm's limits count, "open" if one has
-- none or is shared; nil if there is no GPU.
function M.gpus_among(asked)
    local found = nil
    for part in asked:gmatch("[^,]+") do
        local gres, prefixes = unprefixed(stripped(part))
        if GPU_NAMES[gres:match("^[^:=]*")] then
            found = found ~= "open" and prefixes < 2 and is_typed(gres) and "typed" or "open"
        end
    end
    return found
end

--- The tasks of each GPU by `--ntasks-per-gpu`; nil if unset. Without GPUs in the request Slurm
-- adds as many of no type as the tasks need.
function M.tasks_per_gpu(job_desc)
    local tasks = number(job_desc.ntasks_per_tres, NO_VAL16)
    return tasks ~= 0 and tasks or nil
end

--- The prefix "gres:" or "gres/" that this Slurm puts before a GRES when one is set.
function M.gres_prefix(job_desc)
    local prefix = (text(job_desc.gres) or ""):match("^gres[:/]")
    if prefix or text(job_desc.gres) then
        return prefix or ""
    end
    job_desc.gres = "gpu"
    prefix = (text(job_desc.gres) or ""):match("^gres[:/]")
    job_desc.gres = ""
    return prefix or ""
end

local TEXTS = M.with_request_fields("account", "partition", "qos", "tres_per_node", "gres",
    "cpus_per_tres", "mem_per_tres")

--- The first field with a text longer than TEXT_BYTES, which would take too long to read; nil if
-- none has one.
function M.oversized(job_desc)
    for _, field in ipairs(TEXTS) do
        if #(text(job_desc[field]) or "") > M.TEXT_BYTES then
            return field
        end
    end
    return nil
end

local function start_of(value)
    return text(value) and value:sub(1, M.TEXT_BYTES)
end

local function add_implied_gpus(question, job_desc)
    local per_gpu = M.tasks_per_gpu(job_desc)
    if per_gpu and not M.gpus_among(M.gres_of(question)) then
        local gpus = ("%sgpu:%d"):format(
            M.gres_prefix(job_desc), math.ceil((question.tasks or 1) / per_gpu))
        local asked = question.tres_per_job
        question.tres_per_job = asked and (asked .. "," .. gpus) or gpus
    end
end

--- The fields of SubmitRequest in cluster/rpc/messages.py that Slurm shows, without those from the script.
function M.question_of(job_desc, part_list, submit_uid)
    local question = {
        v = PROTOCOL,
        op = "submit",
        uid = submit_uid,
        account = text(job_desc.account),
        partition = M.partition_of(job_desc, part_list),
        qos = text(job_desc.qos),
        name = start_of(job_desc.name),
        gres = text(job_desc.tres_per_node) or text(job_desc.gres),
        tasks = number(job_desc.num_tasks, NO_VAL),
        min_nodes = number(job_desc.min_nodes, NO_VAL),
        tasks_per_node = number(job_desc.ntasks_per_node, NO_VAL16),
        cpus_per_task = number(job_desc.cpus_per_task, NO_VAL16),
        -- 1 shares the node; a value that keeps it for one user's jobs is refused.
        exclusive = job_desc.shared == 0 or nil,
        array = start_of(job_desc.array_inx),
        time_limit_min = number(job_desc.time_limit, NO_VAL),
    }
    for _, field in ipairs(M.REQUEST_FIELDS) do
        question[field] = text(job_desc[field])
    end
    if not question.account then
        question.default_account = text(job_desc.default_account)
    end
    local requeue = number(job_desc.requeue, NO_VAL16)
    if requeue then
        question.requeue = requeue ~= 0
    end
    add_implied_gpus(question, job_desc)
    return question
end

--- Whether the user wants to read what is decided; srun and salloc send no environment that says it.
function M.asks_for_words(job_desc)
    local environment = text(job_desc.script) and job_desc.environment
    return environment and environment.SLICEWISE_EXPLAIN == "1" or false
end

--- Add what script and environment say. sbatch gives both only to the first part of a heterogeneous
-- job; salloc and srun give neither.
function M.add_script(question, job_desc, environment, directives)
    local part = number(job_desc.het_job_offset, NO_VAL) or 0
    question.interactive = not environment and part == 0 or nil
    question.explain = M.asks_for_words(job_desc) or nil
    -- An empty Lua table would be encoded as an object, not as a list.
    question.directives = #directives > 0 and directives or nil
end

local STEP_VARIABLES = {
    "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK",
    "SLURM_TRES_PER_TASK",
}

--- Let srun in a batch script ask for as many of the job's own GPUs, whatever their type. It asks
-- for the job's GPUs as sbatch wrote them into the environment, and a step can't ask for type auto.
function M.ask_for_any_type_in_steps(environment)
    for _, name in ipairs(STEP_VARIABLES) do
        local said = text(environment[name])
        if said and #said <= M.TEXT_BYTES then
            local plain = ("," .. said):gsub("([,:])auto[:=](%d)", "%1%2"):gsub(",auto$", ",1")
                :gsub("gpu:auto$", "gpu:1"):sub(2)
            if plain ~= said then
                environment[name] = plain
            end
        end
    end
end

return M
